//! The example prints what its README says.

use std::process::Command;

#[test]
fn the_example_prints_what_is_expected() {
    let ran = Command::new(env!("CARGO_BIN_EXE_first-outbox")).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(String::from_utf8_lossy(&ran.stdout), include_str!("../expected-output.txt"));
}
