//! Settings that the documentation shows are settings that the binary takes.

use std::os::unix::fs::PermissionsExt;

use crate::{
    support::Workplace,
    transcripts::{blocks, pages},
};

/// Good for everything that asks for a secret.
const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

#[test]
fn settings_of_every_page_pass_the_check() {
    let mut checked = 0;
    for page in pages() {
        for (language, lines) in blocks(&page) {
            let text = lines.join("\n") + "\n";
            if language.split([',', ' ']).next() != Some("toml") || text.contains("[dependencies]") {
                continue;
            }
            checked += 1;
            let place = Workplace::new();
            let command: &[&str] = if text.contains("[[capture]]") {
                place.write("capture.toml", &text);
                &["capture", "generate", "--mapping", "capture.toml"]
            } else {
                place.write("postrider.toml", whole(&text));
                &["config", "check"]
            };
            for secret in named(&text, "{ file = \"") {
                place.write(&secret, SECRET);
                std::fs::set_permissions(place.path(&secret), std::fs::Permissions::from_mode(0o600)).unwrap();
            }
            for certificate in named(&text, "ca_file = \"") {
                let made = rcgen::generate_simple_self_signed(["ca.internal".to_owned()]).unwrap();
                place.write(&certificate, made.cert.pem());
            }
            let mut command = place.command(command);
            command.envs(named(&text, "{ env = \"").into_iter().map(|name| (name, SECRET)));
            let output = command.output().unwrap();
            let told = String::from_utf8_lossy(&output.stderr);
            let without_otlp = text.contains("otlp_endpoint") && !cfg!(feature = "otlp");
            let without_kafka = text.contains("kafka://") && !cfg!(feature = "kafka");
            if without_otlp {
                assert!(told.contains("was built with the feature `otlp`"), "{}: {told}", page.display());
            } else if without_kafka {
                assert!(told.contains("was built with the feature `kafka`"), "{}: {told}", page.display());
            } else {
                assert!(output.status.success(), "{}:\n{text}\n{told}", page.display());
            }
        }
    }
    assert!(checked >= 8, "only {checked} blocks were found");
}

/// A page shows what it speaks of; the rest is the least that a configuration has.
fn whole(text: &str) -> String {
    let store =
        if text.contains("[store]") || text.contains("[[store]]") { "" } else { "[store]\nurl = \"sqlite:x.db\"\n" };
    let route = "[[route]]\nname = \"shown\"\n";
    if text.contains("[[route]]") {
        format!("{store}{text}")
    } else if text.contains("[route.http]") {
        format!("{store}{route}transport = \"https://hooks.example.com/\"\n{text}")
    } else if text.contains("[route.") {
        format!("{store}{route}transport = \"discard\"\n{text}")
    } else {
        format!("{store}{text}{route}transport = \"discard\"\n")
    }
}

/// What stands in quotes behind `prefix`.
fn named(text: &str, prefix: &str) -> Vec<String> {
    text.match_indices(prefix)
        .map(|(at, _)| text[at + prefix.len()..].split('"').next().unwrap_or_default().to_owned())
        .collect()
}
