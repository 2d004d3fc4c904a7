//! The example prints what its README says, with every broker that it was built for.

use std::process::Command;

#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
use postrider_testkit::service;

#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
fn prints_what_is_expected(broker: &str) {
    let url = service::url(&format!("POSTRIDER_TEST_{}", broker.to_uppercase()));
    let ran = Command::new(env!("CARGO_BIN_EXE_brokers")).arg(url).output().expect("the example starts");
    assert!(ran.status.success(), "{broker}: {}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(String::from_utf8_lossy(&ran.stdout), include_str!("../expected-output.txt"), "{broker}");
}

#[test]
#[cfg(feature = "nats")]
fn with_nats() {
    prints_what_is_expected("nats");
}

#[test]
#[cfg(feature = "rabbitmq")]
fn with_rabbitmq() {
    prints_what_is_expected("rabbitmq");
}

#[test]
#[cfg(feature = "redis")]
fn with_redis() {
    prints_what_is_expected("redis");
}

#[test]
#[cfg(feature = "kafka")]
fn with_kafka() {
    prints_what_is_expected("kafka");
}

#[test]
fn the_readme_shows_what_is_expected() {
    let (readme, expected) = (include_str!("../README.md"), include_str!("../expected-output.txt"));
    assert!(readme.contains(&format!("```text\n{expected}```\n")), "the README shows the output as it is:\n{expected}");
}

#[test]
fn a_broker_that_is_not_known_is_told_so() {
    let ran = Command::new(env!("CARGO_BIN_EXE_brokers")).arg("pigeon://loft").output().expect("the example starts");
    assert!(!ran.status.success());
    assert!(String::from_utf8_lossy(&ran.stderr).contains("`pigeon:` is not compiled into this example"));
}
