//! The columns of the tables that are captured: their names, and how their values are written in JSON.

use mysql_async::prelude::Queryable;
use postrider_core::{
    Result,
    capture::{Capture, Table},
};

use crate::{
    config::connect,
    error::{Work, from_mysql},
};

const COLUMNS: &str = "
SELECT COLUMN_NAME, LOWER(DATA_TYPE)
  FROM information_schema.COLUMNS
 WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?
 ORDER BY ORDINAL_POSITION";

/// MariaDB keeps JSON as text that must be valid.
const JSON_COLUMNS: &str = "
SELECT CHECK_CLAUSE
  FROM information_schema.CHECK_CONSTRAINTS
 WHERE CONSTRAINT_SCHEMA = ? AND TABLE_NAME = ?";

/// How a value is written in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Numbers, texts and times: as the server writes them.
    Plain,
    /// JSON, as it is.
    Json,
    /// Bytes, as hexadecimal digits in lower case.
    Bytes,
    /// Bits, as a number.
    Bits,
    /// Shapes, as GeoJSON.
    Shape,
}

impl Kind {
    fn of(data_type: &str) -> Self {
        match data_type {
            "json" => Self::Json,
            "binary" | "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob" => Self::Bytes,
            "bit" => Self::Bits,
            "geometry" | "point" | "linestring" | "polygon" | "multipoint" | "multilinestring" | "multipolygon"
            | "geometrycollection" | "geomcollection" => Self::Shape,
            _ => Self::Plain,
        }
    }
}

/// One column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// How its value is written.
    pub kind: Kind,
}

/// What a database has of the tables that are captured.
#[derive(Clone, Debug, Default)]
pub struct Tables(Vec<(Table, Vec<Column>)>);

impl Tables {
    /// Looks the tables of these captures up.
    ///
    /// # Errors
    /// What the server answers.
    pub async fn look(url: &str, captures: &[Capture]) -> Result<Self> {
        let mut connection = connect(url).await?;
        let attempt = async {
            let mut found = Vec::new();
            for capture in captures {
                let columns = columns(&mut connection, capture.table()).await?;
                found.push((capture.table().clone(), columns));
            }
            Work::Ok(Self(found))
        };
        let found = attempt.await.map_err(|fault| fault.into_error("look at the tables"))?;
        connection.disconnect().await.map_err(|error| from_mysql(error, "disconnect"))?;
        Ok(found)
    }

    /// The columns of a table; none if it was not found.
    #[must_use]
    pub fn columns(&self, table: &Table) -> &[Column] {
        self.0.iter().find(|(known, _)| known == table).map_or(&[], |(_, columns)| columns)
    }

    /// Every table and column of these captures that the database does not have, in words.
    #[must_use]
    pub fn problems(&self, captures: &[Capture]) -> Vec<String> {
        let mut problems = Vec::new();
        for capture in captures {
            let (table, columns) = (capture.table(), self.columns(capture.table()));
            let (schema, name) = (table.schema(), table.name());
            if columns.is_empty() {
                problems.push(format!("there is no table `{name}` in the database `{schema}`"));
                continue;
            }
            let known: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
            let missing = capture.columns().into_iter().filter(|named| !known.contains(named));
            problems.extend(
                missing
                    .map(|named| format!("`{schema}`.`{name}` has no column `{named}`; it has {}", known.join(", "))),
            );
        }
        problems
    }
}

async fn columns(connection: &mut mysql_async::Conn, table: &Table) -> Work<Vec<Column>> {
    let place = (table.schema(), table.name());
    let found: Vec<(String, String)> = connection.exec(COLUMNS, place).await?;
    let mut columns: Vec<Column> =
        found.into_iter().map(|(name, data_type)| Column { name, kind: Kind::of(&data_type) }).collect();
    let version: Option<String> = connection.query_first("SELECT VERSION()").await?;
    if version.is_some_and(|version| version.contains("MariaDB")) {
        let checks: Vec<String> = connection.exec(JSON_COLUMNS, place).await?;
        for column in &mut columns {
            if checks.iter().any(|check| *check == format!("json_valid(`{}`)", column.name)) {
                column.kind = Kind::Json;
            }
        }
    }
    Ok(columns)
}
