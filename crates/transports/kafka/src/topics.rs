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
    /// It is there, and a replica is missing somewhere. It may take messages all the same.
    Lagging(Cause),
    /// It is there, and nobody serves it, or not all of it.
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
    let partitions = topic.partitions().iter().map(|partition| Partition {
        id: partition.id(),
        leader: partition.leader(),
        insync: partition.isr().len(),
        replicas: partition.replicas().len(),
    });
    Ok(condition(name, partitions))
}

/// What the cluster says about a partition. A leader below 0 is none.
struct Partition {
    id: i32,
    leader: i32,
    insync: usize,
    replicas: usize,
}

/// How a topic is that has these partitions: a leader that is missing matters more than a replica.
fn condition(name: &str, partitions: impl Iterator<Item = Partition>) -> Topic {
    let mut found = Topic::There;
    for Partition { id, leader, insync, replicas } in partitions {
        if leader < 0 {
            return Topic::Unwell(Cause::new("no-leader", format!("{name}/{id} has no leader")));
        }
        if insync < replicas && found == Topic::There {
            let detail = format!("{name}/{id}: {insync} of {replicas} replicas are in sync");
            found = Topic::Lagging(Cause::new("replicas", detail));
        }
    }
    found
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
    fn a_leader_that_is_missing_matters_more_than_a_replica() {
        let of = |partitions: &[(i32, usize)]| {
            let partitions = partitions.iter().zip(0..);
            let partitions = partitions.map(|(&(leader, insync), id)| Partition { id, leader, insync, replicas: 3 });
            match condition("orders", partitions) {
                Topic::Lagging(cause) => format!("lagging {cause}"),
                Topic::Unwell(cause) => format!("unwell {cause}"),
                other => format!("{other:?}"),
            }
        };
        assert_eq!(of(&[(1, 3), (2, 3)]), "There");
        assert_eq!(of(&[(1, 3), (2, 2), (3, 1)]), "lagging replicas: orders/1: 2 of 3 replicas are in sync");
        assert_eq!(of(&[(1, 2), (-1, 2)]), "unwell no-leader: orders/1 has no leader");
    }

    #[test]
    fn a_shape_has_limits() {
        assert_eq!(Shape::new(12, Some(3)).unwrap(), Shape { partitions: 12, replicas: 3 });
        assert_eq!(Shape::new(1, None).unwrap().replicas, -1);
        for (partitions, replicas) in [(0, 1), (1, 0), (10_001, 1), (1, 101), (u32::MAX, 1)] {
            assert!(Shape::new(partitions, Some(replicas)).is_err());
        }
    }
}
