//! Signatures: the published vectors, the reference library both ways, and everything that must not pass.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use postrider_transport_http::{
    Secret, VerifyKey,
    webhook::{self, Refused, Verified},
};

const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const ID: &str = "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk";
const SECONDS: u64 = 1_649_367_553;
const BODY: &[u8] = br#"{"email":"test@example.com","username":"test_user"}"#;
/// From the reference libraries' own tests.
const SIGNATURE: &str = "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=";

// The first key of RFC 8032, section 7.1; the signature was made by OpenSSL.
const SIGNING: &str = "whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";
const PUBLIC: &str = "whpk_11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
const SIGNATURE_ED25519: &str =
    "v1a,jfp5j4J3Buv9EPOcc9Bqo8rJqAO1H6lrRl0WZQdzVZI6IttNPT8HSLyPvUvY54dJJt2BQGA01di1ePvigCwlCw==";

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn keys(texts: &[&str]) -> Vec<VerifyKey> {
    texts.iter().map(|text| VerifyKey::parse(text).unwrap()).collect()
}

/// Checks with the published secret, id, second and body, except for what is given.
fn check(key: &str, id: &str, timestamp: &str, signature: &str, body: &[u8]) -> Result<Verified, Refused> {
    let header = |name: &str| match name {
        webhook::ID => Some(id),
        webhook::TIMESTAMP => Some(timestamp),
        webhook::SIGNATURE => Some(signature),
        other => panic!("asked for {other}"),
    };
    webhook::verify(&keys(&[key]), header, body, at(SECONDS))
}

fn signed(signature: &str) -> Result<Verified, Refused> {
    check(SECRET, ID, &SECONDS.to_string(), signature, BODY)
}

#[test]
fn the_published_vectors_hold() {
    let sign = |secret: &str| webhook::sign(&[Secret::parse(secret).unwrap()], ID, at(SECONDS), BODY);
    let expected = [("webhook-id", ID.to_owned()), ("webhook-timestamp", SECONDS.to_string())];
    assert_eq!(sign(SECRET)[..2], expected);
    assert_eq!(sign(SECRET)[2].1, SIGNATURE);
    assert_eq!(sign(SIGNING)[2].1, SIGNATURE_ED25519);
    assert_eq!(signed(SIGNATURE).unwrap(), Verified { id: ID.to_owned(), sent_at: at(SECONDS) });
    check(PUBLIC, ID, &SECONDS.to_string(), SIGNATURE_ED25519, BODY).unwrap();
    let other = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let [_, _, (_, signature)] =
        webhook::sign(&[other], "msg_p5jXN8AQM9LWM0D4loKWxJek", at(1_614_265_330), br#"{"test": 2432232314}"#);
    assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
}

#[test]
fn the_reference_library_and_ours_understand_each_other() {
    let reference = standardwebhooks::Webhook::new(SECRET).unwrap();
    let now = SystemTime::now();
    let seconds = now.duration_since(UNIX_EPOCH).unwrap().as_secs();
    for length in [0, 1, 63, 64, 65, 1000, 100_000] {
        let body = vec![b'x'; length];
        let theirs = reference.sign(ID, i64::try_from(seconds).unwrap(), &body).unwrap();
        let timestamp = seconds.to_string();
        let header = |name: &str| match name {
            webhook::ID => Some(ID),
            webhook::TIMESTAMP => Some(timestamp.as_str()),
            _ => Some(theirs.as_str()),
        };
        webhook::verify(&keys(&[SECRET]), header, &body, now).unwrap();
        let ours = webhook::sign(&[Secret::parse(SECRET).unwrap()], ID, now, &body);
        let headers = ours.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        reference.verify(&body, &headers.collect::<hyper::HeaderMap>()).unwrap();
    }
}

#[test]
fn a_shortened_signature_never_passes() {
    for (key, whole) in [(SECRET, SIGNATURE), (PUBLIC, SIGNATURE_ED25519)] {
        for length in 0..whole.len() {
            let cut = &whole[..length];
            let refused = check(key, ID, &SECONDS.to_string(), cut, BODY).unwrap_err();
            let expected = if cut.is_empty() { Refused::Missing("webhook-signature") } else { Refused::Signature };
            assert_eq!(refused, expected, "{cut}");
        }
        // Longer is not whole either.
        for more in ["=", "A", "AAAA", "\u{e9}"] {
            assert!(check(key, ID, &SECONDS.to_string(), &format!("{whole}{more}"), BODY).is_err(), "{more}");
        }
    }
}

#[test]
fn a_changed_byte_never_passes() {
    for (key, whole) in [(SECRET, SIGNATURE), (PUBLIC, SIGNATURE_ED25519)] {
        for place in 0..whole.len() {
            let mut bytes = whole.as_bytes().to_vec();
            bytes[place] = if bytes[place] == b'B' { b'C' } else { b'B' };
            let changed = String::from_utf8(bytes).unwrap();
            assert!(check(key, ID, &SECONDS.to_string(), &changed, BODY).is_err(), "{changed}");
        }
        for place in 0..BODY.len() {
            let mut body = BODY.to_vec();
            body[place] ^= 1;
            assert!(check(key, ID, &SECONDS.to_string(), whole, &body).is_err());
        }
        assert!(check(key, ID, &(SECONDS + 1).to_string(), whole, BODY).is_err(), "another second");
        assert!(
            check(key, "msg_27UH4WbU6Z5A5EzD8u03UvzRbpl", &SECONDS.to_string(), whole, BODY).is_err(),
            "another id"
        );
    }
}

#[test]
fn one_good_signature_among_others_is_enough_wherever_it_stands() {
    let decoys = [
        "v1,AAAA",
        "v2,xyz",
        "v1a,AAAA",
        "nonsense",
        "",
        ",",
        "v1,",
        "v1,R3PTzyfHASBKHH98a7yexTwaJ4yNIcGhFQc1yuN+BPU=",
    ];
    for place in 0..=decoys.len() {
        let mut list: Vec<&str> = decoys.to_vec();
        list.insert(place, SIGNATURE);
        signed(&list.join(" ")).unwrap_or_else(|refused| panic!("at {place}: {refused}"));
    }
    assert_eq!(signed(&decoys.join(" ")), Err(Refused::Signature));
}

#[test]
fn a_version_is_checked_with_its_own_kind_of_key() {
    let seconds = SECONDS.to_string();
    let as_v1 = SIGNATURE_ED25519.replace("v1a,", "v1,");
    let as_v1a = SIGNATURE.replace("v1,", "v1a,");
    for (key, signature) in [
        (SECRET, SIGNATURE_ED25519),
        (SECRET, &as_v1),
        (SECRET, &as_v1a),
        (PUBLIC, SIGNATURE),
        (PUBLIC, &as_v1),
        (PUBLIC, &as_v1a),
        (SECRET, &SIGNATURE.replace("v1,", "V1,")),
        (SECRET, &SIGNATURE.replace("v1,", "v1 ,")),
        (SECRET, &SIGNATURE.replace(',', "=")),
    ] {
        assert_eq!(check(key, ID, &seconds, signature, BODY), Err(Refused::Signature), "{key} {signature}");
    }
}

#[test]
fn either_key_of_a_rotation_passes_and_no_key_never() {
    let old = Secret::parse(SECRET).unwrap();
    let new = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let both = webhook::sign(&[old.clone(), new.clone()], ID, at(SECONDS), BODY);
    let verify = |keys: &[VerifyKey], headers: &[(&'static str, String); 3]| {
        let header = |name: &str| headers.iter().find(|(n, _)| *n == name).map(|(_, value)| value.as_str());
        webhook::verify(keys, header, BODY, at(SECONDS))
    };
    let (old_key, new_key) = (old.verify_key(), new.verify_key());
    verify(std::slice::from_ref(&old_key), &both).unwrap();
    verify(std::slice::from_ref(&new_key), &both).unwrap();
    let with_new = webhook::sign(std::slice::from_ref(&new), ID, at(SECONDS), BODY);
    verify(&[old_key.clone(), new_key], &with_new).unwrap();
    assert_eq!(verify(&[old_key], &with_new), Err(Refused::Signature));
    assert_eq!(verify(&[], &both), Err(Refused::Signature));
}

#[test]
fn time_has_five_minutes_either_way() {
    let now_at = |now: u64| {
        let header = |name: &str| match name {
            webhook::ID => Some(ID),
            webhook::TIMESTAMP => Some("1649367553"),
            _ => Some(SIGNATURE),
        };
        webhook::verify(&keys(&[SECRET]), header, BODY, at(now)).map(drop)
    };
    assert_eq!(now_at(SECONDS + 300), Ok(()));
    assert_eq!(now_at(SECONDS - 300), Ok(()));
    assert_eq!(now_at(SECONDS + 301), Err(Refused::TooOld));
    assert_eq!(now_at(SECONDS - 301), Err(Refused::TooNew));
}

#[test]
fn odd_headers_are_refused_even_if_they_are_signed() {
    let secret = [Secret::parse(SECRET).unwrap()];
    for id in ["a.b", ".", "a b", "größe", "a\n"] {
        let [_, _, (_, signature)] = webhook::sign(&secret, id, at(SECONDS), BODY);
        assert_eq!(check(SECRET, id, &SECONDS.to_string(), &signature, BODY), Err(Refused::Id), "{id:?}");
    }
    for time in ["+1649367553", " 1649367553", "1649367553.0", "0x62", "-1", "1e9", "99999999999999999999", "now"] {
        assert_eq!(check(SECRET, ID, time, SIGNATURE, BODY), Err(Refused::Timestamp), "{time:?}");
    }
    assert_eq!(check(SECRET, "", "1", SIGNATURE, BODY), Err(Refused::Missing("webhook-id")));
    assert_eq!(check(SECRET, ID, "", SIGNATURE, BODY), Err(Refused::Missing("webhook-timestamp")));
    let nothing = webhook::verify(&keys(&[SECRET]), |_| None, BODY, at(SECONDS));
    assert_eq!(nothing, Err(Refused::Missing("webhook-id")));
}

#[test]
fn the_border_between_id_time_and_body_cannot_be_moved() {
    // What was signed as body `1649367553.x` of the id `a` must not pass as body `x` of an id with a full stop.
    let secret = [Secret::parse(SECRET).unwrap()];
    let [_, _, (_, signature)] = webhook::sign(&secret, "a", at(SECONDS), b"1649367553.x");
    assert!(check(SECRET, "a", "1649367553", &signature, b"1649367553.x").is_ok());
    assert_eq!(check(SECRET, "a.1649367553", "1649367553", &signature, b"x"), Err(Refused::Id));
}
