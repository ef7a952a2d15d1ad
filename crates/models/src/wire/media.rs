//! The text that takes the place of images and PDF files that a request can't have.

use std::borrow::Cow;

use crate::image::{Image, ImageRoom};
use crate::model::{Message, Request, ToolResult};

/// Returns the request with a text in place of each image that can't be sent: for the reason that `refusal` returns, because it has no
/// bytes, or because there are too many newer ones.
pub(crate) fn replace_unsent_images<'a>(
    request: &'a Request,
    refusal: impl Fn(&Image) -> Option<&'static str>,
) -> Cow<'a, Request> {
    let has_images =
        |message: &Message| matches!(message, Message::Tool(result) if !result.images.is_empty());
    if !request.messages.iter().any(has_images) {
        return Cow::Borrowed(request);
    }
    let mut request = request.clone();
    let mut room = ImageRoom::default();
    for message in request.messages.iter_mut().rev() {
        let Message::Tool(ToolResult { text, images, .. }) = message else { continue };
        let mut stand_ins = Vec::new();
        images.retain(|image| {
            let reason = match refusal(image) {
                Some(reason) => reason,
                None if !room.take(image) => "it is not shown any more, since there are newer ones",
                None if image.bytes().is_none() => "it can't be shown",
                None => return true,
            };
            stand_ins.push(format!("[{}: {reason}]", image.describe()));
            false
        });
        for stand_in in stand_ins {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&stand_in);
        }
    }
    Cow::Owned(request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{MAX_IMAGES, MAX_REQUEST_BYTES};

    /// The header of a PNG image of this size.
    fn png(width: u32, height: u32) -> Vec<u8> {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        bytes.extend(width.to_be_bytes());
        bytes.extend(height.to_be_bytes());
        bytes.extend([8, 2, 0, 0, 0]);
        bytes
    }

    #[test]
    fn pages_of_pdf_files_are_sent_to_models_that_take_them() {
        let pdf = Image::from_pdf("/report.pdf", b"%PDF-1.7", 3).unwrap();
        let result = ToolResult { text: "text".into(), images: vec![pdf], ..ToolResult::default() };
        let request = Request {
            system: String::new(),
            messages: vec![Message::Tool(result)],
            tools: Vec::new(),
            answer: None,
            max_output_tokens: 10,
        };
        for takes_pdf in [true, false] {
            let sent = replace_unsent_images(&request, |_| (!takes_pdf).then_some("no"));
            let Message::Tool(result) = &sent.messages[0] else { panic!() };
            assert_eq!(!result.images.is_empty(), takes_pdf);
            assert_eq!(result.text.contains("[PDF /report.pdf, 3 pages"), !takes_pdf, "{}", result.text);
        }
    }

    #[test]
    fn images_that_can_not_be_sent_have_a_text_in_their_place() {
        let image = Image::from_bytes("/plot.png", &png(640, 480)).unwrap();
        let result = |images: Vec<Image>| {
            Message::Tool(ToolResult {
                call_id: "c".into(),
                text: "read".into(),
                images,
                ..ToolResult::default()
            })
        };
        let request = |messages: Vec<Message>| Request {
            system: String::new(),
            messages,
            tools: Vec::new(),
            answer: None,
            max_output_tokens: 10,
        };
        let text_of = |request: &Request, at: usize| match &request.messages[at] {
            Message::Tool(result) => (result.text.clone(), result.images.len()),
            Message::User { .. } | Message::Assistant { .. } => panic!(),
        };
        let one = request(vec![result(vec![image.clone()])]);
        let blind = replace_unsent_images(&one, |_| Some("this model cannot see images"));
        let expected = "read\n[image /plot.png, PNG 640×480, 29 bytes: this model cannot see images]";
        assert_eq!(text_of(&blind, 0), (expected.into(), 0));
        assert_eq!(replace_unsent_images(&one, |_| None).as_ref(), &one);
        let missing = request(vec![result(vec![image.clone().without_content()])]);
        assert!(text_of(&replace_unsent_images(&missing, |_| None), 0).0.contains("it can't be shown"));
        let many = request((0..MAX_IMAGES + 2).map(|_| result(vec![image.clone()])).collect());
        let sent = replace_unsent_images(&many, |_| None);
        let counts: Vec<usize> = (0..many.messages.len()).map(|at| text_of(&sent, at).1).collect();
        assert_eq!((counts[..2].to_vec(), counts[2..].iter().sum()), (vec![0, 0], MAX_IMAGES));
        let large = Image { size: MAX_REQUEST_BYTES / 3, ..image };
        let four = request((0..4).map(|_| result(vec![large.clone()])).collect());
        let sent = replace_unsent_images(&four, |_| None);
        assert_eq!((0..4).map(|at| text_of(&sent, at).1).collect::<Vec<_>>(), [0, 1, 1, 1]);
        let none = request(vec![Message::User { text: "x".into() }]);
        assert!(matches!(
            replace_unsent_images(&none, |_| Some("this model cannot see images")),
            Cow::Borrowed(_)
        ));
    }
}
