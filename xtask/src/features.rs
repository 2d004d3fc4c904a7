//! The features of a crate, as cargo tells them: no list is kept by hand, so none can be forgotten.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::step::cargo;

/// Names of the features of `package`, without `default`.
pub(crate) fn of(package: &str) -> Result<Vec<String>> {
    let text = cargo("metadata", &["metadata", "--no-deps", "--format-version", "1"]).output()?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata is not JSON")?;
    read(&metadata, package).with_context(|| format!("cargo metadata does not know the package `{package}`"))
}

fn read(metadata: &Value, package: &str) -> Option<Vec<String>> {
    let packages = metadata["packages"].as_array()?;
    let found = packages.iter().find(|candidate| candidate["name"] == package)?;
    let features = found["features"].as_object()?;
    Some(features.keys().filter(|name| *name != "default").cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_features_of_one_package_are_found() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "other", "features": { "x": [] } },
            { "name": "postrider", "features": { "default": ["memory"], "memory": [], "sqlite": [] } },
        ]});
        assert_eq!(read(&metadata, "postrider").unwrap(), ["memory", "sqlite"]);
        assert_eq!(read(&metadata, "absent"), None);
    }
}
