//! What arrived, in the order of arriving, by the file that the transport writes.
//!
//! A relay that is killed in the middle of a write can leave half a line, which the next write continues. The half line was
//! never acknowledged and will be published again; what follows it is a whole message and must not be overlooked.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{ErrorKind, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    str::FromStr,
};

use postrider::MessageId;
use serde_json::Value;

use crate::exit::{Code, Failure, Outcome};

/// Every arrival.
pub(super) fn read(path: &Path) -> Outcome<Vec<MessageId>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.lines().filter_map(message_id).collect()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(unreadable(path, &error)),
    }
}

/// Follows the file as it grows.
pub(super) struct Tail {
    path: PathBuf,
    offset: u64,
    rest: String,
    seen: HashSet<MessageId>,
}

impl Tail {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, offset: 0, rest: String::new(), seen: HashSet::new() }
    }

    /// How many different messages have arrived by now.
    pub(super) fn delivered(&mut self) -> Outcome<u32> {
        match self.read_on() {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(unreadable(&self.path, &error)),
        }
        Ok(u32::try_from(self.seen.len()).unwrap_or(u32::MAX))
    }

    fn read_on(&mut self) -> std::io::Result<()> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        self.offset += file.read_to_string(&mut self.rest)? as u64;
        let whole = self.rest.rfind('\n').map_or(0, |end| end + 1);
        self.seen.extend(self.rest[..whole].lines().filter_map(message_id));
        self.rest.drain(..whole);
        Ok(())
    }
}

/// The id of the message on a line. If the line begins with the torn half of another one, that of the whole message behind.
fn message_id(line: &str) -> Option<MessageId> {
    let objects = line.match_indices('{').map(|(start, _)| &line[start..]);
    let mut whole = objects.filter_map(|text| serde_json::from_str::<Value>(text).ok());
    whole.find_map(|object| MessageId::from_str(object["id"].as_str()?).ok())
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::because(Code::Problem, format!("the arrivals in {} cannot be read", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_line_does_not_hide_the_one_behind_it() {
        let [torn, whole] = [MessageId::generate(), MessageId::generate()];
        let line = format!(r#"{{"id":"{torn}","data":{{"a{{"id":"{whole}","data":{{"a":1}}}}"#);
        assert_eq!(message_id(&line), Some(whole));
        assert_eq!(message_id(&format!(r#"{{"id":"{torn}","da"#)), None);
        assert_eq!(message_id(&format!(r#"{{"id":"{whole}","data":{{"id":"x"}}}}"#)), Some(whole));
    }

    #[test]
    fn a_growing_file_is_followed_line_by_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let mut tail = Tail::new(path.clone());
        assert_eq!(tail.delivered().unwrap(), 0);
        let [one, two] = [0, 1].map(|_| format!("{{\"id\":\"{}\"}}\n", MessageId::generate()));
        let (half, rest) = two.split_at(10);
        fs::write(&path, format!("{one}{half}")).unwrap();
        assert_eq!(tail.delivered().unwrap(), 1);
        fs::write(&path, format!("{one}{half}{rest}{one}")).unwrap();
        assert_eq!(tail.delivered().unwrap(), 2);
    }
}
