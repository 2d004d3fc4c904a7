//! Which updates could throw away the mail of a document.

use mongodb::{
    bson::{Bson, Document},
    options::UpdateModifications,
};

/// Whether the array, or something in it, has this name.
fn is_array(array: &str, name: &str) -> bool {
    name == array || name.strip_prefix(array).is_some_and(|rest| rest.starts_with('.'))
}

/// Whether an operator writes to the array.
pub(super) fn touches(array: &str, operator: &str, change: &Bson) -> bool {
    change.as_document().is_some_and(|change| {
        // What is renamed takes the place of whatever has the new name.
        let renamed = |to: &Bson| operator == "$rename" && to.as_str().is_some_and(|to| is_array(array, to));
        change.iter().any(|(name, to)| is_array(array, name) || renamed(to))
    })
}

/// Whether the update could take away, or change, what is in the array: everything that writes there and does not merely add.
/// In doubt it could.
pub(crate) fn may_throw_away(update: &UpdateModifications, array: &str) -> bool {
    match update {
        UpdateModifications::Document(update) => update.iter().any(|(operator, change)| match &**operator {
            "$push" | "$addToSet" => change.as_document().is_none_or(|change| !adds(change, array)),
            // Only where there was no document.
            "$setOnInsert" => false,
            operator => touches(array, operator, change),
        }),
        UpdateModifications::Pipeline(stages) => stages.iter().any(|stage| stage.iter().any(|of| rewrites(of, array))),
        _ => true,
    }
}

/// Whether all that is pushed to the array stays there with what it had.
fn adds(change: &Document, array: &str) -> bool {
    let mut written = change.iter().filter(|(name, _)| is_array(array, name));
    written.all(|(name, value)| name == array && value.as_document().is_none_or(|value| !value.contains_key("$slice")))
}

/// Whether a stage of a pipeline could.
fn rewrites((stage, of): (&String, &Bson), array: &str) -> bool {
    match &**stage {
        "$set" | "$addFields" => touches(array, stage, of),
        "$unset" => match of {
            Bson::String(name) => is_array(array, name),
            Bson::Array(names) => names.iter().any(|name| name.as_str().is_none_or(|name| is_array(array, name))),
            _ => true,
        },
        // The others make another document.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn what_adds_is_let_through_and_what_takes_away_is_not() {
        for harmless in [
            doc! { "$set": { "n": 1, "_outbox_size": 2 } },
            doc! { "$push": { "_outbox": { "id": 1 } } },
            doc! { "$push": { "_outbox": { "$each": [{ "id": 1 }] } }, "$inc": { "n": 1 } },
            doc! { "$setOnInsert": { "_outbox": [] } },
        ] {
            assert!(!may_throw_away(&harmless.clone().into(), "_outbox"), "{harmless}");
        }
        for harmful in [
            doc! { "$set": { "_outbox": [] } },
            doc! { "$unset": { "_outbox": 1 } },
            doc! { "$set": { "_outbox.0.topic": "x" } },
            doc! { "$rename": { "_outbox": "x" } },
            doc! { "$rename": { "x": "_outbox" } },
            doc! { "$pop": { "_outbox": 1 } },
            doc! { "$push": { "_outbox": { "$each": [], "$slice": 0 } } },
            doc! { "$push": { "_outbox.0.headers": 1 } },
        ] {
            assert!(may_throw_away(&harmful.clone().into(), "_outbox"), "{harmful}");
        }
    }

    #[test]
    fn a_pipeline_may_make_another_document() {
        let through = |stage: Document| may_throw_away(&vec![doc! { "$set": { "n": 1 } }, stage].into(), "_outbox");
        assert!(!through(doc! { "$set": { "m": "$n" } }) && !through(doc! { "$unset": ["m", "n"] }));
        for harmful in [
            doc! { "$replaceWith": { "n": 1 } },
            doc! { "$replaceRoot": { "newRoot": "$n" } },
            doc! { "$project": { "n": 1 } },
            doc! { "$unset": "_outbox" },
            doc! { "$unset": ["n", "_outbox"] },
            doc! { "$addFields": { "_outbox": [] } },
        ] {
            assert!(through(harmful.clone()), "{harmful}");
        }
    }
}
