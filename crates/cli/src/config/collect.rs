//! `[store.collect]`: mail that documents of a MongoDB carry, and that is carried into this store.

use postrider::{
    Result,
    mongodb::embedded::{Builder, Collector, Embedded},
};

use super::{reader::Section, secret::Place, shapes::texts};

/// What the file says about a collector.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CollectConfig {
    url: Place,
    collections: Vec<String>,
    field: String,
    table_prefix: String,
    make_indexes: bool,
}

impl CollectConfig {
    /// The collector's settings. Its URL is looked up.
    pub(crate) fn builder(&self) -> Result<Builder> {
        self.at(&self.url.get()?)
    }

    fn at(&self, url: &str) -> Result<Builder> {
        let builder = Collector::builder(url).collections(&self.collections);
        let builder = builder.prefix(&self.table_prefix).make_indexes(self.make_indexes);
        Ok(builder.outbox(&Embedded::with_field(&self.field)?))
    }
}

/// Reads the table of a store. What must be looked up is checked later.
pub(super) fn read(store: &mut Section<'_, '_>) -> Option<CollectConfig> {
    let mut section = store.section("collect")?;
    let url = section.secret("url");
    if !section.has("url") {
        section.object("url", "missing: say where the documents are, such as `mongodb://host/database`");
    }
    let collections = section.require("collections", texts);
    let field = section.text_or_default("field");
    let (table_prefix, make_indexes) =
        (section.text_or_default("table_prefix"), section.boolean_or_default("make_indexes"));
    let collect = url.zip(collections);
    let collect =
        collect.map(|(url, collections)| CollectConfig { url, collections, field, table_prefix, make_indexes });
    if let Some(collect) = &collect
        && let Err(error) = trouble(collect)
    {
        section.object("url", error.to_string());
    }
    section.close();
    collect
}

/// What the collector itself would object to, without connecting to anything.
fn trouble(collect: &CollectConfig) -> Result<()> {
    let url = match &collect.url {
        Place::Value(url) => url,
        // What stands elsewhere is judged when it is looked up.
        Place::Env(_) | Place::File(_) => "mongodb://localhost/elsewhere",
    };
    collect.at(url)?.check()
}
