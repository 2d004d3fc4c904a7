//! What somebody names is read up to a limit: a path may lead to a device without an end, and so may standard input.

use std::{
    fs::File,
    io::{self, ErrorKind, Read},
    path::Path,
};

/// A text file, such as a configuration. What is larger is not one.
pub(crate) fn text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let bytes = all(File::open(path)?, bytes_max)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "stream did not contain valid UTF-8"))
}

/// All that comes, unless it is more than so many bytes.
pub(crate) fn all(from: impl Read, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if from.take(bytes_max + 1).read_to_end(&mut bytes)? as u64 <= bytes_max {
        return Ok(bytes);
    }
    let limit =
        if bytes_max < 1 << 20 { format!("{} KiB", bytes_max >> 10) } else { format!("{} MiB", bytes_max >> 20) };
    Err(io::Error::new(ErrorKind::InvalidData, format!("it is larger than {limit}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_refused() {
        assert_eq!(all(&b"four"[..], 4).unwrap(), b"four");
        assert_eq!(all(io::repeat(0), 64 << 10).unwrap_err().to_string(), "it is larger than 64 KiB");
        assert_eq!(all(io::repeat(0), 1 << 20).unwrap_err().to_string(), "it is larger than 1 MiB");
    }
}
