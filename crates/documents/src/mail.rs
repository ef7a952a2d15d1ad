//! Text of e-mail messages: the headers that a reader sees, the body, and the names of the attachments.

use mail_parser::{Address, Message, MessageParser, MimeHeaders};

use crate::{ExtractError, ExtractedText};

pub(crate) fn extract_message(bytes: &[u8]) -> Result<ExtractedText, ExtractError> {
    let no_message = || ExtractError::Damaged("it has no headers of an e-mail message".into());
    let message = MessageParser::default().parse(bytes).ok_or_else(no_message)?;
    if message.headers().is_empty() {
        return Err(no_message());
    }
    let subject = message.subject().map(|subject| subject.trim().to_owned()).filter(|text| !text.is_empty());
    let mut text = format_headers(&message);
    for part in 0..message.text_body_count() {
        if let Some(body) = message.body_text(part) {
            text.push('\n');
            text.push_str(body.trim_end());
            text.push('\n');
        }
    }
    for attachment in message.attachments() {
        let name = attachment.attachment_name().unwrap_or("without a name");
        text.push_str(&format!("\nAttachment: {name}\n"));
    }
    Ok(ExtractedText::from_single_text(subject, text))
}

fn format_headers(message: &Message<'_>) -> String {
    let mut headers = String::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            headers.push_str(&format!("{name}: {value}\n"));
        }
    };
    add("From", message.from().map(format_addresses));
    add("To", message.to().map(format_addresses));
    add("Cc", message.cc().map(format_addresses));
    add("Date", message.date().map(|date| date.to_rfc3339()));
    add("Subject", message.subject().map(str::to_owned));
    headers
}

fn format_addresses(addresses: &Address<'_>) -> String {
    let format = |address: &mail_parser::Addr<'_>| match (address.name(), address.address()) {
        (Some(name), Some(address)) => format!("{name} <{address}>"),
        (Some(text), None) | (None, Some(text)) => text.to_owned(),
        (None, None) => String::new(),
    };
    addresses.iter().map(format).collect::<Vec<_>>().join(", ")
}
