//! `[route.destination]`: under which topics a route publishes, where that is not as enqueued.

use postrider::routing::{Naming, Topics};

use super::{reader::Section, shapes::text_table};

/// Reads the rules of a route; `None` if there are none.
pub(super) fn read(route: &mut Section<'_, '_>) -> Option<Topics> {
    const NAMINGS: &[(&str, Naming)] =
        &[("type-name", Naming::TypeName), ("kebab", Naming::Kebab), ("snake", Naming::Snake)];

    let mut section = route.section_or_empty("destination");
    let mut topics = Topics::new().naming(section.word_or_default("naming", NAMINGS));
    for (name, topic) in section.get("map", text_table).unwrap_or_default() {
        topics = topics.map(&name, &topic);
    }
    if let Some(fallback) = section.text("fallback") {
        topics = topics.fallback(&fallback);
    }
    if let Some(prefix) = section.text("prefix") {
        topics = topics.prefix(&prefix);
    }
    section.close();
    match topics.check() {
        Ok(topics) => Some(topics).filter(|topics| *topics != Topics::new()),
        Err(error) => {
            route.object("destination", error.chain());
            None
        }
    }
}
