//! The file that `postrider init` writes: what has to be said, and every other key at its default, commented out.

use super::{
    keys::{Fallback, KEYS, Key},
    show::header,
};

/// The values that a chosen store and transport need, by the path of their key.
pub(crate) type Chosen<'a> = &'a [(&'a str, &'a str)];

/// The whole file. Sections of which nothing is chosen are commented out too, unless a relay needs them.
pub(crate) fn template(chosen: Chosen<'_>) -> String {
    let mut text = "\
#:schema ./postrider.schema.json
# The configuration of Postrider. Lines that are commented out say what holds without them.
#   postrider config check                            is it right?
#   postrider config show                             what holds, and where does it come from?
#   postrider config schema > postrider.schema.json   help in an editor
#   postrider run                                     start
# Everything can be said in the environment too: POSTRIDER__RELAY__LEASE_LIFE=30s, POSTRIDER__ROUTE__EVERYTHING__RATE=10
"
    .to_owned();
    let mut last = "";
    for key in KEYS {
        let section = key.section();
        if section != last {
            let wanted = ["store", "relay", "log", "telemetry", "route", "route.retry"].contains(&section)
                || is_chosen(chosen, section);
            text.push_str(&format!("\n{}{}\n", if wanted { "" } else { "# " }, header(section, false)));
            last = section;
        }
        text.push_str(&line(key, chosen));
    }
    text
}

fn is_chosen(chosen: Chosen<'_>, section: &str) -> bool {
    chosen.iter().any(|(path, _)| path.rsplit_once('.').is_some_and(|(of, _)| of == section))
}

fn line(key: &Key, chosen: Chosen<'_>) -> String {
    let (name, doc) = (key.name(), key.doc);
    let said = chosen.iter().find(|(path, _)| *path == key.path).map(|(_, value)| *value);
    match (said, &key.fallback) {
        (Some(value), _) => format!("# {doc}\n{name} = {value}\n"),
        (None, Fallback::Value(value)) => format!("# {doc}\n# {name} = {value}\n"),
        (None, Fallback::Words(words)) => format!("# {doc}\n# {name} = …   # default: {words}\n"),
        (None, Fallback::Required) => format!("# {doc}\n# {name} = …\n"),
    }
}
