//! A disk that is full, a file that may not be written, a crash in the middle of a line: nothing is lost, and the cause is
//! named.

use std::{
    fs::OpenOptions,
    io::{self, Write},
    path::Path,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use postrider_core::{
    ErrorKind,
    envelope::{Envelope, MessageId},
    headers::Headers,
    transport::{Outcome, Publisher},
};
use postrider_testkit::transport::{publish, record};
use postrider_transport_ndjson::{NdjsonPublisher, read_line};

fn envelopes(count: usize) -> Vec<Envelope> {
    (0..count).map(|i| Envelope::new("t", "n", format!("{{\"n\":{i}}}")).with_key("a")).collect()
}

/// What a reader makes of the bytes: whole lines count, torn ones are skipped.
fn readable(bytes: &[u8]) -> Vec<MessageId> {
    bytes.split(|byte| *byte == b'\n').filter_map(|line| read_line(line).ok()).map(|line| line.envelope.id).collect()
}

fn cause_of(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Unavailable(cause) | Outcome::Rejected(cause) | Outcome::Unknown(cause) => cause.code(),
        other => panic!("{other:?} has no cause"),
    }
}

#[tokio::test]
async fn a_torn_last_line_does_not_swallow_its_successor() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.ndjson");
    let sent = envelopes(3);
    publish(&NdjsonPublisher::file(&path).unwrap(), &sent).await;
    let whole = std::fs::read(&path).unwrap();
    // A crash may cut the last line anywhere, also right before its line break.
    let second_ends = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(i, _)| i + 1).nth(1).unwrap();
    for length in second_ends..=whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        let publisher = NdjsonPublisher::file(&path).unwrap();
        let next = envelopes(1);
        publish(&publisher, &next).await;
        let read = readable(&std::fs::read(&path).unwrap());
        assert!(read.ends_with(&[next[0].id]), "cut at {length}: what follows a torn line must be readable");
        assert!(read.starts_with(&[sent[0].id, sent[1].id]), "cut at {length}: whole lines stay");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_that_is_moved_away_or_removed_is_made_anew() {
    let directory = tempfile::tempdir().unwrap();
    let (path, rotated) = (directory.path().join("events.ndjson"), directory.path().join("events.1"));
    let publisher = NdjsonPublisher::file(&path).unwrap();
    let ids = |sent: &[Envelope]| sent.iter().map(|envelope| envelope.id).collect::<Vec<_>>();
    let read = |path: &Path| readable(&std::fs::read(path).unwrap());
    let batches = [envelopes(2), envelopes(2), envelopes(2)];
    publish(&publisher, &batches[0]).await;
    std::fs::rename(&path, &rotated).unwrap();
    publish(&publisher, &batches[1]).await;
    assert_eq!((read(&rotated), read(&path)), (ids(&batches[0]), ids(&batches[1])));
    std::fs::remove_file(&path).unwrap();
    publish(&publisher, &batches[2]).await;
    assert_eq!(read(&path), ids(&batches[2]), "nobody writes to a file that no reader can find");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let refused = publisher.publish(vec![record(&Envelope::new("t", "n", "{}"))]).await;
    assert!(matches!(refused[0], Outcome::Unavailable(_)), "{refused:?}");
}

/// What a process leaves behind that is killed in the middle of a line.
fn tear(path: &Path) {
    let mut file = OpenOptions::new().append(true).open(path).expect("open the file");
    file.lock().expect("lock the file");
    file.write_all(br#"{"id":"0197"#).expect("write a torn line");
}

#[tokio::test]
async fn a_line_torn_by_another_process_does_not_swallow_its_successor() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.ndjson");
    let publishers = [NdjsonPublisher::file(&path).unwrap(), NdjsonPublisher::file(&path).unwrap()];
    let mut sent = Vec::new();
    for publisher in [0, 0, 1, 1, 0] {
        let batch = envelopes(2);
        publish(&publishers[publisher], &batch).await;
        sent.extend(batch.iter().map(|envelope| envelope.id));
        tear(&path);
    }
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(readable(&bytes), sent, "what a living process has published is readable, whoever died in between");
    assert!(!bytes.windows(2).any(|pair| pair == b"\n\n"), "a line that is whole is not completed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_publishers_share_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.ndjson");
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let publisher = NdjsonPublisher::file(&path).unwrap().sync(false);
            let path = path.clone();
            tokio::spawn(async move {
                let mut sent = Vec::new();
                for round in 0..60 {
                    let batch = envelopes(7);
                    publish(&publisher, &batch).await;
                    sent.extend(batch.iter().map(|envelope| envelope.id));
                    if round % 5 == 0 {
                        tear(&path);
                    }
                }
                sent
            })
        })
        .collect();
    let mut sent = Vec::new();
    for task in tasks {
        sent.push(task.await.unwrap());
    }
    let read = readable(&std::fs::read(&path).unwrap());
    assert_eq!(read.len(), 3 * 60 * 7, "nothing is glued together, nothing is written twice");
    for sent in sent {
        let of_one: Vec<_> = read.iter().copied().filter(|id| sent.contains(id)).collect();
        assert_eq!(of_one, sent, "the lines of one publisher stay in order");
    }
}

/// A writer that takes so many bytes and then fails, until it is given more room.
#[derive(Clone)]
struct Narrow(Arc<Mutex<(Vec<u8>, usize, io::ErrorKind)>>);

impl Narrow {
    fn new(room: usize, kind: io::ErrorKind) -> Self {
        Self(Arc::new(Mutex::new((Vec::new(), room, kind))))
    }
}

impl Write for Narrow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.lock().expect("nobody panicked");
        let (written, room, kind) = &mut *state;
        let fits = room.saturating_sub(written.len()).min(bytes.len());
        if fits == 0 {
            return Err((*kind).into());
        }
        written.extend_from_slice(&bytes[..fits]);
        Ok(fits)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_full_disk_is_an_outage_and_loses_nothing() {
    let sent = envelopes(4);
    let measured = Narrow::new(usize::MAX, io::ErrorKind::Other);
    publish(&NdjsonPublisher::writer(measured.clone()), &sent).await;
    let total = measured.0.lock().unwrap().0.len();
    // Room for nothing, for part of the first line, for one line and a bit, for all but the last byte.
    for room in [0, 10, total / 3, total - 1] {
        let narrow = Narrow::new(room, io::ErrorKind::StorageFull);
        let publisher = NdjsonPublisher::writer(narrow.clone());
        let outcomes = publisher.publish(sent.iter().map(record).collect()).await;
        assert!(outcomes.iter().all(|o| matches!(o, Outcome::Unavailable(_))), "room for {room}: {outcomes:?}");
        assert_eq!(cause_of(&outcomes[0]), "disk-full");
        narrow.0.lock().unwrap().1 = usize::MAX;
        publish(&publisher, &sent).await;
        let read = readable(&narrow.0.lock().unwrap().0);
        let all: Vec<_> = sent.iter().map(|envelope| envelope.id).collect();
        assert!(read.ends_with(&all), "room for {room}: once there is room everything arrives");
    }
}

#[tokio::test]
async fn every_kind_of_failure_is_named() {
    let kinds = [
        (io::ErrorKind::StorageFull, "disk-full"),
        (io::ErrorKind::QuotaExceeded, "quota-exceeded"),
        (io::ErrorKind::PermissionDenied, "permission-denied"),
        (io::ErrorKind::ReadOnlyFilesystem, "read-only"),
        (io::ErrorKind::BrokenPipe, "broken-pipe"),
        (io::ErrorKind::Other, "write-failed"),
    ];
    for (kind, code) in kinds {
        let publisher = NdjsonPublisher::writer(Narrow::new(0, kind));
        let outcomes = publisher.publish(envelopes(1).iter().map(record).collect()).await;
        assert!(matches!(outcomes[0], Outcome::Unavailable(_)));
        assert_eq!(cause_of(&outcomes[0]), code);
    }
}

#[tokio::test]
async fn a_real_full_device_is_an_outage() {
    // Linux has a device that is always full.
    let full = Path::new("/dev/full");
    if !full.exists() {
        return;
    }
    let publisher = NdjsonPublisher::file(full).unwrap();
    let outcomes = publisher.publish(envelopes(2).iter().map(record).collect()).await;
    assert_eq!(outcomes.iter().map(cause_of).collect::<Vec<_>>(), ["disk-full", "disk-full"]);
}

#[tokio::test]
async fn a_file_that_cannot_be_opened_names_its_path() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing").join("events.ndjson");
    let cases = [(missing.as_path(), ErrorKind::NotFound), (directory.path(), ErrorKind::Invalid)];
    for (path, kind) in cases {
        let Err(error) = NdjsonPublisher::file(path) else { panic!("{} cannot be opened", path.display()) };
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
}

#[tokio::test]
async fn unreadable_headers_reject_one_message_and_stop_its_key() {
    let mut sent = envelopes(3);
    sent.push(Envelope::new("t", "n", "1").with_key("b"));
    sent[1].headers = Headers::from_encoded(Bytes::from_static(b"not json"));
    let narrow = Narrow::new(usize::MAX, io::ErrorKind::Other);
    let outcomes = NdjsonPublisher::writer(narrow.clone()).publish(sent.iter().map(record).collect()).await;
    let names: Vec<_> = outcomes.iter().map(Outcome::name).collect();
    assert_eq!(names, ["durable", "rejected", "unknown", "durable"]);
    assert_eq!(readable(&narrow.0.lock().unwrap().0), [sent[0].id, sent[3].id]);
}

#[tokio::test]
async fn without_syncing_the_lines_are_there_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.ndjson");
    let publisher = NdjsonPublisher::file(&path).unwrap().sync(false);
    let sent = envelopes(5);
    publish(&publisher, &sent).await;
    publisher.close().await.unwrap();
    assert_eq!(readable(&std::fs::read(&path).unwrap()).len(), 5);
}
