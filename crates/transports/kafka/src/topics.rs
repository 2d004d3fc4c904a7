//! Topics: whether one is there, how it is, and how one is made.
//!
//! Asking is a blocking call of the client; whoever is asynchronous asks on a thread for such calls.

use std::time::{Duration, Instant};

use postrider_core::{Error, ErrorKind, Result, parked::Cause};
use rdkafka::{
    ClientConfig, ClientContext,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::{Client, DefaultClientContext},
    error::{KafkaError, RDKafkaErrorCode as Code},
};

use crate::{ending::Ending, error};

/// What says that the brokers decide.
const BROKERS_DEFAULT: i32 = -1;

/// How a new topic is made: partitions and replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) partitions: i32,
    pub(crate) replicas: i32,
}

impl Shape {
    /// # Errors
    /// If no topic can be like that.
    pub(crate) fn new(partitions: u32, replicas: Option<u32>) -> Result<Self> {
        let fine = |count: u32, max: i32| i32::try_from(count).ok().filter(|count| (1..=max).contains(count));
        match (fine(partitions, 10_000), replicas.map_or(Some(BROKERS_DEFAULT), |replicas| fine(replicas, 100))) {
            (Some(partitions), Some(replicas)) => Ok(Self { partitions, replicas }),
            _ => Err(Error::invalid("a topic has 1 to 10000 partitions and 1 to 100 replicas")),
        }
    }
}

/// What the cluster says about a topic.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Topic {
    There,
    Missing,
    /// It is there and nobody, or not everybody, serves it.
    Unwell(Cause),
    /// It is not for us, or cannot be.
    Refused(Code),
}

/// Asks for a topic. Blocks, up to `timeout`.
///
/// # Errors
/// What the client says if no broker answers.
pub(crate) fn look_up<C: ClientContext>(client: &Client<C>, name: &str, timeout: Duration) -> Result<Topic, Code> {
    let code = |error: KafkaError| error.rdkafka_error_code().unwrap_or(Code::Unknown);
    let metadata = client.fetch_metadata(Some(name), timeout).map_err(code)?;
    let Some(topic) = metadata.topics().iter().find(|topic| topic.name() == name) else { return Ok(Topic::Missing) };
    if let Some(refusal) = topic.error() {
        let refusal = Code::from(refusal);
        return Ok(match refusal {
            Code::UnknownTopicOrPartition | Code::UnknownTopic => Topic::Missing,
            Code::LeaderNotAvailable => Topic::Unwell(Cause::new("no-leader", format!("{name} has no leader"))),
            other => Topic::Refused(other),
        });
    }
    for partition in topic.partitions() {
        if partition.leader() < 0 {
            return Ok(Topic::Unwell(Cause::new("no-leader", format!("{name}/{} has no leader", partition.id()))));
        }
        let (insync, all) = (partition.isr().len(), partition.replicas().len());
        if insync < all {
            let detail = format!("{name}/{}: {insync} of {all} replicas are in sync", partition.id());
            return Ok(Topic::Unwell(Cause::new("replicas", detail)));
        }
    }
    Ok(Topic::There)
}

/// Makes topics; one that is there is left as it is. Returns when the cluster has been told, which may be before every broker
/// knows of it: those that it will not have, and why.
///
/// # Errors
/// [`ErrorKind::Unavailable`] if one cannot be made for a reason that may pass.
pub(crate) async fn make(
    config: &ClientConfig,
    names: &[String],
    shape: Shape,
    timeout: Duration,
) -> Result<Vec<(String, Code)>> {
    let admin: AdminClient<DefaultClientContext> = config.create().map_err(|e| error::setting(&e))?;
    let admin = Ending::new(admin);
    let replication = || TopicReplication::Fixed(shape.replicas);
    let topics: Vec<NewTopic<'_>> =
        names.iter().map(|name| NewTopic::new(name, shape.partitions, replication())).collect();
    let options = AdminOptions::new().request_timeout(Some(timeout)).operation_timeout(Some(timeout));
    let made = admin.create_topics(&topics, &options).await;
    drop(admin);
    let mut refused = Vec::new();
    for answer in made.map_err(|e| error::failed("make topics", e))? {
        match answer {
            Ok(_) | Err((_, Code::TopicAlreadyExists)) => {}
            // Something about this name, which is no reason to keep the others waiting.
            Err((name, code @ (Code::InvalidTopic | Code::PolicyViolation | Code::TopicAuthorizationFailed))) => {
                refused.push((name, code));
            }
            Err((name, code)) => {
                return Err(Error::new(ErrorKind::Unavailable, "make a topic").with("topic", name).caused_by(code));
            }
        }
    }
    Ok(refused)
}

/// Asks again and again until a topic that was just made is there. Blocks, up to `timeout`.
///
/// # Errors
/// What the client says if no broker answers.
pub(crate) fn wait_for<C: ClientContext>(client: &Client<C>, name: &str, timeout: Duration) -> Result<Topic, Code> {
    let begun = Instant::now();
    // Ends with the topic, or with the time.
    loop {
        let found = look_up(client, name, timeout)?;
        if found == Topic::There || begun.elapsed() > timeout {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_has_limits() {
        assert_eq!(Shape::new(12, Some(3)).unwrap(), Shape { partitions: 12, replicas: 3 });
        assert_eq!(Shape::new(1, None).unwrap().replicas, -1);
        for (partitions, replicas) in [(0, 1), (1, 0), (10_001, 1), (1, 101), (u32::MAX, 1)] {
            assert!(Shape::new(partitions, Some(replicas)).is_err());
        }
    }
}
