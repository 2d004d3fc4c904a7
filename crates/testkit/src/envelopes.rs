//! About two hundred envelopes that must survive every trip: through a store, over a wire, into a file.
//!
//! They are the same in every run. The first are chosen (empty, binary, largest, odd), the rest are drawn from a fixed
//! seed. All of them pass the default [`Limits`](postrider_core::limits::Limits).

use crate::random::Random;
use postrider_core::{
    envelope::{Envelope, MessageId},
    headers::Headers,
    time::Timestamp,
};

/// How many there are.
pub const SPECIMENS: usize = 200;

/// The envelopes. Ids are unique; about two thirds have one of a dozen keys.
#[must_use]
pub fn specimens() -> Vec<Envelope> {
    let mut random = Random::new(0x0005_eed0_f7e5_7001);
    let mut envelopes = chosen(&mut random);
    while envelopes.len() < SPECIMENS {
        envelopes.push(drawn(&mut random));
    }
    envelopes
}

/// A message of which every part shows on a wire: for a test that reads it there with a bare client, and knows by heart what it
/// has to find. What goes out wrong and is read back wrong in the same way looks right to everybody else.
///
/// As a [record](crate::transport::record) it was enqueued at `2026-11-15T20:24:41.000250Z`.
#[must_use]
pub fn telling() -> Envelope {
    let id = MessageId(uuid::uuid!("0197741f-8c2e-7b3a-9d51-0c2f6e1a7b44"));
    let headers = Headers::new([
        ("content-type", "text/plain"),
        ("correlation-id", "c 1"),
        ("tenant", "7"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("x-odd", "o"),
    ]);
    let envelope = Envelope::new("order.placed", "order.placed.v1", "größe \u{1f40e}").with_key("größe 42");
    Envelope { id, headers: headers.expect("good headers"), ..envelope }
}

const TEXTS: [&str; 8] =
    ["plain", "größe", "日本語", "emoji 🐎💌", "quote \" back \\ slash", "a/b?c=d&e%20", "-", "  spaced  "];

fn chosen(random: &mut Random) -> Vec<Envelope> {
    let all_bytes: Vec<u8> = (0..=255).collect();
    let payloads: [Vec<u8>; 12] = [
        Vec::new(),
        vec![0],
        all_bytes.clone(),
        all_bytes.repeat(4096),
        b"{}".to_vec(),
        br#"{"n": 1, "list": [1.5, null, true], "text": "gr\u00f6\u00dfe"}"#.to_vec(),
        "\"日本語\u{2028}\"".as_bytes().to_vec(),
        b"line\nbreak\r\n".to_vec(),
        b"not json {".to_vec(),
        b" 42 ".to_vec(),
        b"12345678901234567890123".to_vec(),
        br#"{"b": 1, "a": 2, "a": 3}"#.to_vec(),
    ];
    let mut envelopes: Vec<_> = payloads.into_iter().map(|payload| with_payload(random, payload)).collect();
    envelopes.extend(TEXTS.map(|text| {
        let headers = Headers::new([("text", text), ("empty", ""), ("content-type", "text/plain")]);
        Envelope { headers: headers.expect("good headers"), ..with_payload(random, text.into()) }.with_key(text)
    }));
    envelopes.push(with_payload(random, b"x".to_vec()).with_key("k".repeat(512)));
    let many = Headers::new((0..64).map(|i| (format!("h-{i:02}"), "v".repeat(200)))).expect("good headers");
    envelopes.push(Envelope { headers: many, ..with_payload(random, b"x".to_vec()) });
    let long = "segment.".repeat(31) + "segment";
    envelopes.push(Envelope { topic: long.as_str().into(), name: long.as_str().into(), ..envelopes[0].clone() });
    envelopes.last_mut().expect("just pushed").id = id(random);
    envelopes.push(Envelope {
        deliver_at: Some(Timestamp::from_micros(1_000_001)),
        expires_at: Some(Timestamp::from_micros(4_102_444_800_123_456)),
        attempts_max: Some(u32::MAX),
        ..with_payload(random, b"timed".to_vec())
    });
    envelopes
}

fn drawn(random: &mut Random) -> Envelope {
    let length = usize::try_from(random.below(400)).expect("small");
    let payload = match random.below(3) {
        0 => random.bytes(length),
        1 => format!("{{\"n\":{},\"text\":\"{}\"}}", random.below(1 << 40), TEXTS[1]).into_bytes(),
        _ => TEXTS[usize::try_from(random.below(8)).expect("small")].repeat(length / 20).into_bytes(),
    };
    let mut envelope = with_payload(random, payload);
    let topics = ["orders.placed", "orders.cancelled", "payments", "a/b:c_d-e.F"];
    envelope.topic = topics[usize::try_from(random.below(4)).expect("small")].into();
    if random.below(3) < 2 {
        envelope = envelope.with_key(format!("key-{}", random.below(12)));
    }
    if random.below(2) == 0 {
        let value = TEXTS[usize::try_from(random.below(8)).expect("small")];
        envelope.headers = Headers::new([("correlation-id", value), ("x_1.2", "v")]).expect("good headers");
    }
    if random.below(4) == 0 {
        envelope.attempts_max = Some(1 + u32::try_from(random.below(20)).expect("small"));
    }
    envelope
}

fn with_payload(random: &mut Random, payload: Vec<u8>) -> Envelope {
    Envelope { id: id(random), ..Envelope::new("specimens.topic", "specimen.name", payload) }
}

fn id(random: &mut Random) -> MessageId {
    let bytes = random.bytes(16).try_into().expect("sixteen bytes");
    MessageId(uuid::Builder::from_random_bytes(bytes).into_uuid())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use postrider_core::limits::Limits;

    use super::*;

    #[test]
    fn they_are_many_lawful_distinct_and_always_the_same() {
        let envelopes = specimens();
        assert_eq!(envelopes.len(), SPECIMENS);
        assert_eq!(envelopes.iter().map(|e| e.id).collect::<HashSet<_>>().len(), SPECIMENS);
        assert_eq!(envelopes, specimens());
        Limits::default().check(envelopes).unwrap();
    }
}
