//! The table of an evaluation: a row for each measure, a column for each configuration and method.

use crate::evaluation::store::SampleMethod;
use crate::view::align_columns;

/// A column: the measures of a configuration and method.
#[derive(Debug)]
pub struct TableColumn {
    pub configuration: String,
    pub method: SampleMethod,
    /// Names and values.
    pub rows: Vec<(String, String)>,
}

/// Returns the table as lines. Rows are in the order of the columns; a measure that a column lacks is `-`.
pub fn table_lines(columns: &[TableColumn]) -> Vec<String> {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in columns.iter().flat_map(|column| &column.rows) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let row = |name: &str, cell: &dyn Fn(&TableColumn) -> String| -> Vec<String> {
        std::iter::once(name.to_owned()).chain(columns.iter().map(cell)).collect()
    };
    let value = |column: &TableColumn, name: &str| {
        let found = column.rows.iter().find(|(own, _)| own == name);
        found.map_or_else(|| "-".to_owned(), |(_, value)| value.clone())
    };
    let mut rows = vec![
        row("configuration", &|column| column.configuration.clone()),
        row("method", &|column| column.method.name().to_owned()),
    ];
    rows.extend(names.into_iter().map(|name| row(name, &|column| value(column, name))));
    align_columns(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_share_their_rows() {
        let column = |configuration: &str, method, rows: &[(&str, &str)]| TableColumn {
            configuration: configuration.into(),
            method,
            rows: rows.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        };
        let lines = table_lines(&[
            column("small", SampleMethod::Run, &[("samples", "3"), ("accepted", "2")]),
            column("small", SampleMethod::Ceiling, &[("samples", "1")]),
        ]);
        assert_eq!(
            lines,
            [
                "configuration  small  small",
                "method         run    ceiling",
                "samples        3      1",
                "accepted       2      -",
            ]
        );
    }
}
