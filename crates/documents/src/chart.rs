//! Charts of Office Open XML as tables: a row for each category, a column for each series.

use std::collections::BTreeMap;

use roxmltree::Node;

use crate::archive::{find_attribute, find_child, find_elements, has_name};
use crate::blocks::{CELL_BORDER, join_words};

/// A series: its values by their index, and the categories that they belong to.
#[derive(Default)]
struct Series {
    name: String,
    categories: BTreeMap<u32, String>,
    values: BTreeMap<u32, String>,
}

/// Formats a chart part, of DrawingML or of the newer format of Office 2016.
pub(crate) fn format_chart(root: Node<'_, '_>) -> String {
    let titles: Vec<String> =
        find_elements(root, "title").map(read_text).filter(|title| !title.is_empty()).collect();
    let mut text = format!("Chart: {}", titles.join(", ")).trim_end().to_owned() + "\n\n";
    let series: Vec<Series> = match find_elements(root, "chartData").next() {
        Some(data) => data.children().filter(|node| has_name(*node, "data")).map(read_data).collect(),
        None => find_elements(root, "ser").map(read_series).collect(),
    };
    let mut rest = series.as_slice();
    while let [first, ..] = rest {
        let same = |other: &&Series| other.categories.is_empty() || other.categories == first.categories;
        let count = 1 + rest[1..].iter().take_while(same).count();
        text.push_str(&format_series(&rest[..count]));
        text.push('\n');
        rest = &rest[count..];
    }
    text
}

/// Formats series with the same categories.
fn format_series(series: &[Series]) -> String {
    let mut lines = Vec::new();
    let mut add_line = |mut cells: Vec<String>, has_categories: bool| {
        if !has_categories {
            cells.remove(0);
        }
        lines.push(cells.join(CELL_BORDER));
    };
    let categories = &series[0].categories;
    let has_categories = !categories.is_empty();
    let names: Vec<String> = series.iter().map(|one| one.name.clone()).collect();
    if names.iter().any(|name| !name.is_empty()) {
        add_line([vec![String::new()], names].concat(), true);
    }
    let mut indexes: Vec<u32> =
        series.iter().flat_map(|one| one.values.keys()).chain(categories.keys()).copied().collect();
    indexes.sort_unstable();
    indexes.dedup();
    for index in indexes {
        let category = categories.get(&index).cloned().unwrap_or_default();
        let values = series.iter().map(|one| one.values.get(&index).cloned().unwrap_or_default());
        add_line(std::iter::once(category).chain(values).collect(), has_categories);
    }
    lines.iter().map(|line| format!("{}\n", line.trim())).collect()
}

fn read_series(series: Node<'_, '_>) -> Series {
    let mut read = Series::default();
    for child in series.children() {
        match child.tag_name().name() {
            "tx" => read.name = read_text(child),
            "cat" | "xVal" => read.categories = read_points(child),
            "val" | "yVal" => read.values = round_values(read_points(child)),
            _ => {}
        }
    }
    read
}

/// Returns the points by index. The levels of a category are joined, the innermost one last.
fn read_points(node: Node<'_, '_>) -> BTreeMap<u32, String> {
    let mut points: BTreeMap<u32, String> = BTreeMap::new();
    for point in find_elements(node, "pt") {
        let Some(index) = find_attribute(point, "idx").and_then(|text| text.parse().ok()) else { continue };
        let text = read_text(point);
        let known = points.entry(index).or_default();
        *known = if known.is_empty() { text } else { format!("{text} {known}") };
    }
    points
}

/// Rounds numbers to the 15 digits that Excel displays.
fn round_values(mut values: BTreeMap<u32, String>) -> BTreeMap<u32, String> {
    for value in values.values_mut().filter(|value| value.len() > 15) {
        if let Ok(number) = value.parse::<f64>()
            && let Ok(rounded) = format!("{number:.14e}").parse::<f64>()
        {
            *value = rounded.to_string();
        }
    }
    values
}

/// Reads the data of one series in a chart of Office 2016 or later.
fn read_data(data: Node<'_, '_>) -> Series {
    let id = find_attribute(data, "id");
    let is_of_data = |series: &Node<'_, '_>| {
        find_elements(*series, "dataId").any(|reference| find_attribute(reference, "val") == id)
    };
    let root = data.document().root();
    let series = find_elements(root, "series").find(is_of_data);
    let name = series.and_then(|series| find_child(series, "tx"));
    let points = |kind: &str| find_child(data, kind).map(read_points).unwrap_or_default();
    Series {
        name: name.map(read_text).unwrap_or_default(),
        categories: points("strDim"),
        values: round_values(points("numDim")),
    }
}

/// Returns the text below a title, a name or a point, without formulas of the workbook.
fn read_text(node: Node<'_, '_>) -> String {
    let is_text = |inner: &Node<'_, '_>| {
        inner.is_text()
            && inner.parent().is_some_and(|parent| ["t", "v", "pt"].contains(&parent.tag_name().name()))
    };
    let texts: Vec<&str> = node.descendants().filter(is_text).filter_map(|text| text.text()).collect();
    join_words(&texts.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_are_tables_of_their_series() {
        let points = |name: &str, values: &[&str]| {
            let points = values.iter().enumerate();
            let points: String =
                points.map(|(index, value)| format!("<pt idx='{index}'><v>{value}</v></pt>")).collect();
            format!("<{name}><numRef><f>Sheet1!A1</f>{points}</numRef></{name}>")
        };
        let series = |name: &str, values: &[&str]| {
            let (categories, values) = (points("cat", &["2024", "2025"]), points("val", values));
            format!("<ser><tx><v>{name}</v></tx>{categories}{values}</ser>")
        };
        let xml = format!(
            "<chart><title><r><t>Flour</t></r></title>{}{}</chart>",
            series("rye", &["3", "8.200000000000001"]),
            series("oats", &["1"])
        );
        let document = roxmltree::Document::parse(&xml).unwrap();
        let expected = "Chart: Flour\n\n| rye | oats\n2024 | 3 | 1\n2025 | 8.2 |\n\n";
        assert_eq!(format_chart(document.root()), expected);
    }
}
