//! Text of workbooks: each sheet is a part, with a line for each row that has values.

use std::io::Cursor;

use calamine::{Data, Error, ExcelDateTime, Range, Reader, XlsError, XlsxError, open_workbook_auto_from_rs};

use crate::archive::Archive;
use crate::blocks::{CELL_BORDER, join_words};
use crate::office::PROPERTIES;
use crate::{ExtractError, ExtractedText, TextPart};

pub(crate) fn extract_sheets(bytes: &[u8]) -> Result<ExtractedText, ExtractError> {
    let title = match bytes.starts_with(b"PK") {
        // The parser of workbooks has no limit of its own on what it unpacks.
        true => Archive::open(bytes)?.read_title(PROPERTIES)?,
        false => None,
    };
    let mut workbook = open_workbook_auto_from_rs(Cursor::new(bytes)).map_err(to_extract_error)?;
    let mut parts = Vec::new();
    for name in workbook.sheet_names() {
        // A sheet may be a chart, which has no cells.
        let Ok(range) = workbook.worksheet_range(&name) else { continue };
        parts.push(TextPart { place: Some(format!("sheet {name}")), text: format_range(&range) });
    }
    Ok(ExtractedText { title, parts })
}

fn format_range(range: &Range<Data>) -> String {
    let mut text = String::new();
    for row in range.rows() {
        let cells: Vec<String> = row.iter().map(format_cell).collect();
        let line = cells.join(CELL_BORDER);
        let line = line.trim_end_matches([' ', '|']);
        if !line.is_empty() {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

fn format_cell(cell: &Data) -> String {
    if let Data::DateTime(time) = cell
        && time.is_datetime()
    {
        return format_time(time);
    }
    join_words(&cell.to_string())
}

fn format_time(time: &ExcelDateTime) -> String {
    let (year, month, day, hour, minute, second, _) = time.to_ymd_hms_milli();
    match (hour, minute, second) {
        (0, 0, 0) => format!("{year:04}-{month:02}-{day:02}"),
        _ => format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}"),
    }
}

fn to_extract_error(error: Error) -> ExtractError {
    let needs_password = matches!(error, Error::Xls(XlsError::Password) | Error::Xlsx(XlsxError::Password));
    if needs_password { ExtractError::Encrypted } else { ExtractError::Damaged(error.to_string()) }
}
