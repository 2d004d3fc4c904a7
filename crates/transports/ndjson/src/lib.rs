//! A transport that writes one JSON object per line, to standard output or to a file.
