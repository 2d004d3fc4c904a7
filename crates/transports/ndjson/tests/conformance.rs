//! Lines of JSON keep every promise of a publisher, in a file and through a writer.

use std::{
    io::Write,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use postrider_core::{BoxFuture, transport::Publisher};
use postrider_testkit::transport::{Arrived, PublisherFixture};
use postrider_transport_ndjson::{NdjsonPublisher, read_line};

mod file {
    use super::*;

    async fn fresh() -> Arc<dyn PublisherFixture> {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let path = directory.path().join("events.ndjson");
        let publisher = Arc::new(NdjsonPublisher::file(&path).expect("open a new file"));
        Arc::new(InFile { _directory: directory, path, publisher })
    }

    postrider_testkit::publisher_conformance!(fresh);
}

mod writer {
    use super::*;

    async fn fresh() -> Arc<dyn PublisherFixture> {
        let buffer = Buffer::default();
        Arc::new(InMemory { publisher: Arc::new(NdjsonPublisher::writer(buffer.clone())), buffer })
    }

    postrider_testkit::publisher_conformance!(fresh);
}

struct InFile {
    _directory: tempfile::TempDir,
    path: PathBuf,
    publisher: Arc<NdjsonPublisher>,
}

impl PublisherFixture for InFile {
    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::clone(&self.publisher) as Arc<dyn Publisher>
    }

    fn arrived(&self) -> BoxFuture<'_, Vec<Arrived>> {
        Box::pin(async { parse(&std::fs::read(&self.path).expect("read the file")) })
    }
}

struct InMemory {
    publisher: Arc<NdjsonPublisher>,
    buffer: Buffer,
}

impl PublisherFixture for InMemory {
    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::clone(&self.publisher) as Arc<dyn Publisher>
    }

    fn arrived(&self) -> BoxFuture<'_, Vec<Arrived>> {
        Box::pin(async { parse(&self.buffer.0.lock().expect("nobody panicked")) })
    }
}

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("nobody panicked").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn parse(bytes: &[u8]) -> Vec<Arrived> {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n').map(|line| read_line(line).expect("a whole line"));
    lines.map(|line| Arrived { envelope: line.envelope, replay: line.replay }).collect()
}
