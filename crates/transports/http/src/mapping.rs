//! A record as an HTTP request, and back: the HTTP binding of CloudEvents, in binary and in structured mode.
//!
//! Which attributes an envelope has is decided in [`postrider_core::cloudevents`], once for every transport. Here they get
//! their place: `ce-` headers beside the payload, or members of one JSON object around it. [`read`] takes a request of
//! either mode back to the envelope, byte for byte.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use postrider_core::{
    Error, Result,
    cloudevents::{self, Attribute, Received},
    log::Record,
    percent,
};
use serde_json::value::RawValue;

/// What a header with an attribute begins with.
const PREFIX: &str = "ce-";
/// How a body says that it is a whole event.
const STRUCTURED_JSON: &str = "application/cloudevents+json";

/// Where the event's attributes stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// In `ce-` headers; the body is the payload as it is. The signature does not cover the headers.
    #[default]
    Binary,
    /// In the body, a JSON object with the payload in `data` or `data_base64`. The signature covers everything.
    Structured,
}

/// A request as far as the event decides it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    /// Names in lower case, values of visible ASCII and inner spaces.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Bytes,
}

/// Headers and body for a record.
#[cfg_attr(not(feature = "client"), expect(dead_code, reason = "only the client writes"))]
pub(crate) fn write(mode: Mode, record: &Record, source: &str) -> Result<Content> {
    let attributes = cloudevents::attributes(record, source)?;
    Ok(match mode {
        Mode::Binary => binary(attributes, record.envelope.payload.clone()),
        Mode::Structured => structured(&attributes, &record.envelope.payload),
    })
}

fn binary(attributes: Vec<Attribute>, payload: Bytes) -> Content {
    let header = |(name, value): Attribute| match name.as_str() {
        "datacontenttype" => ("content-type".to_owned(), value),
        _ => (format!("{PREFIX}{name}"), percent::encode(&value)),
    };
    Content { headers: attributes.into_iter().map(header).collect(), body: payload }
}

fn structured(attributes: &[Attribute], payload: &[u8]) -> Content {
    let json = attributes.iter().any(|(name, value)| name == "datacontenttype" && is_json(value));
    let mut event: Vec<String> = attributes.iter().map(|(name, value)| member(name, &quoted(value))).collect();
    // A payload stands as JSON only if reading it back gives the very bytes: no space around it, and not `null`, which
    // could not be told from no data.
    let raw: Option<&RawValue> = serde_json::from_slice(payload).ok();
    match raw.filter(|raw| raw.get().len() == payload.len() && payload != b"null") {
        _ if payload.is_empty() => {}
        Some(raw) if json => event.push(member("data", raw.get())),
        _ => event.push(member("data_base64", &quoted(&BASE64.encode(payload)))),
    }
    let headers = vec![("content-type".to_owned(), STRUCTURED_JSON.to_owned())];
    Content { headers, body: format!("{{{}}}", event.join(",")).into() }
}

fn member(name: &str, json: &str) -> String {
    format!("{}:{json}", quoted(name))
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn is_json(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media_type == "application/json" || media_type.ends_with("+json")
}

/// Reads a request back, whichever mode it is in. `headers` are all headers of the request; names in any case. If there is
/// a `webhook-id` it must be the event's: in binary mode that is what ties the unsigned headers to the signed body.
///
/// Check the signature first, with [`webhook::verify`](crate::webhook::verify).
///
/// # Errors
/// [`Invalid`](postrider_core::ErrorKind::Invalid) if it is not a CloudEvent of version 1.0.
pub fn read<'h>(headers: impl IntoIterator<Item = (&'h str, &'h str)>, body: Bytes) -> Result<Received> {
    let (mut attributes, mut content_type, mut webhook_id) = (Vec::new(), None, None);
    for (name, value) in headers {
        let name = name.to_ascii_lowercase();
        if name == "content-type" {
            content_type = Some(value.to_owned());
        } else if name == "webhook-id" {
            webhook_id = Some(value.to_owned());
        } else if let Some(attribute) = name.strip_prefix(PREFIX) {
            let value = percent::decode(value)
                .ok_or_else(|| Error::invalid("a `ce-` header is not UTF-8").with("header", &name))?;
            attributes.push((attribute.to_owned(), value));
        }
    }
    let whole = content_type.as_deref().and_then(|value| value.get(..cloudevents::STRUCTURED.len()));
    let received = if whole.is_some_and(|start| start.eq_ignore_ascii_case(cloudevents::STRUCTURED)) {
        read_structured(&body)?
    } else {
        attributes.extend(content_type.map(|value| ("datacontenttype".to_owned(), value)));
        cloudevents::from_attributes(attributes, body)?
    };
    if webhook_id.is_some_and(|id| id != received.envelope.id.to_string()) {
        return Err(Error::invalid("the request's `webhook-id` and the event's `id` are not the same"));
    }
    Ok(received)
}

fn read_structured(body: &[u8]) -> Result<Received> {
    let not_an_event = || Error::invalid("the body is not a CloudEvent as JSON");
    let event: std::collections::BTreeMap<String, Box<RawValue>> =
        serde_json::from_slice(body).map_err(|e| not_an_event().caused_by(e))?;
    let (mut attributes, mut data, mut data_base64) = (Vec::new(), None, None);
    for (name, raw) in event {
        match name.as_str() {
            "data" => data = Some(raw),
            "data_base64" => data_base64 = Some(raw),
            _ => attributes.extend(text_of(&raw)?.map(|value| (name, value))),
        }
    }
    let json = attributes.iter().find(|(name, _)| name == "datacontenttype").is_none_or(|(_, value)| is_json(value));
    let payload = match (data, data_base64) {
        (None, None) => Bytes::new(),
        (None, Some(raw)) => {
            let text = text_of(&raw)?.ok_or_else(not_an_event)?;
            BASE64.decode(text).map_err(|e| Error::invalid("`data_base64` is not Base64").caused_by(e))?.into()
        }
        // Another sender may write text as a JSON string; what we send in `data` is always JSON.
        (Some(raw), None) if !json => text_of(&raw)?.unwrap_or_default().into(),
        (Some(raw), None) => Bytes::copy_from_slice(raw.get().as_bytes()),
        (Some(_), Some(_)) => return Err(Error::invalid("a CloudEvent has either `data` or `data_base64`, not both")),
    };
    cloudevents::from_attributes(attributes, payload)
}

/// A JSON value as an attribute's text; `null` is no attribute.
fn text_of(raw: &RawValue) -> Result<Option<String>> {
    let value: serde_json::Value = serde_json::from_str(raw.get())
        .map_err(|e| Error::invalid("an attribute of a CloudEvent is not JSON").caused_by(e))?;
    Ok(match value {
        serde_json::Value::Null => None,
        serde_json::Value::String(text) => Some(text),
        other => Some(other.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use postrider_testkit::{
        envelopes::specimens,
        transport::{assert_travelled, record},
    };

    use super::*;

    fn back(content: &Content) -> Received {
        read(content.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())), content.body.clone()).unwrap()
    }

    #[test]
    #[cfg(feature = "client")]
    fn every_specimen_survives_both_modes() {
        for envelope in specimens() {
            for mode in [Mode::Binary, Mode::Structured] {
                let content = write(mode, &record(&envelope), "shop").unwrap();
                let visible = |value: &str| value.bytes().all(|b| (b' '..=b'~').contains(&b)) && value.trim() == value;
                assert!(content.headers.iter().all(|(_, value)| visible(value)), "{:?}", content.headers);
                let received = back(&content);
                assert_travelled(&received.envelope, &envelope);
                assert_eq!(received.source, "shop");
            }
        }
    }

    #[test]
    fn a_structured_event_has_its_json_in_plain_sight() {
        let envelope = &specimens()[5];
        let attributes = cloudevents::attributes(&record(envelope), "shop").unwrap();
        let content = structured(&attributes, &envelope.payload);
        let event: serde_json::Value = serde_json::from_slice(&content.body).unwrap();
        assert_eq!(event["data"]["list"], serde_json::json!([1.5, null, true]));
        assert_eq!(event["specversion"], "1.0");
        assert_eq!(content.headers, [("content-type".to_owned(), "application/cloudevents+json".to_owned())]);
    }

    #[test]
    fn events_of_other_systems_can_be_read() {
        let body = r#"{"specversion":"1.0","id":"01977420-dc00-7000-8000-000000000001","source":"/other","type":"a.b",
                       "datacontenttype":"text/plain","data":"größe","sampled":true,"count":3,"nothing":null}"#;
        let received = read([("Content-Type", "application/cloudevents+json; charset=utf-8")], body.into()).unwrap();
        assert_eq!(&received.envelope.payload[..], "größe".as_bytes());
        assert_eq!(&*received.envelope.topic, "a.b", "no topic: the type");
        let headers = received.envelope.headers.decode().unwrap();
        let expected = [("content-type", "text/plain"), ("count", "3"), ("sampled", "true")];
        assert_eq!(headers, expected.map(|(n, v)| (n.to_owned(), v.to_owned())));
    }

    #[test]
    fn headers_of_another_event_are_refused() {
        let attributes = cloudevents::attributes(&record(&specimens()[4]), "shop").unwrap();
        let content = binary(attributes, Bytes::new());
        let mut headers: Vec<_> = content.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        headers.push(("Webhook-Id", "01977420-dc00-7000-8000-000000000001"));
        let error = read(headers, Bytes::new()).unwrap_err();
        assert!(error.to_string().contains("webhook-id"), "{error}");
    }

    #[test]
    fn what_is_not_an_event_is_refused() {
        let json = [("content-type", "application/cloudevents+json")];
        for body in ["", "[]", "{}", "{\"specversion\":\"1.0\"}", r#"{"data":1,"data_base64":"AA=="}"#, "{"] {
            assert!(read(json, body.into()).is_err(), "{body}");
        }
        assert!(read([("ce-id", "%FF")], Bytes::new()).is_err());
        assert!(read([], Bytes::new()).is_err());
    }
}
