//! The text that takes the place of images and PDF files that a request can't have.

use std::borrow::Cow;

use crate::image::ImageRoom;
use crate::model::{Message, Request, ToolResult};

/// The way in which a model gets the images of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImageSupport {
    /// It sees them.
    Native,
    /// It sees none.
    None,
    /// It would see them, but not in a request whose messages are all rewritten as text.
    TextOnly,
}

/// The way in which a model gets the images and PDF files of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MediaSupport {
    pub images: ImageSupport,
    /// `true` if it takes PDF files.
    pub takes_pdf: bool,
}

impl From<ImageSupport> for MediaSupport {
    fn from(images: ImageSupport) -> Self {
        Self { images, takes_pdf: false }
    }
}

/// Returns the request with a text in place of each image that can't be sent: the model sees none, it has no bytes, or there are too many
/// newer ones.
pub(crate) fn replace_unsent_images(request: &Request, support: MediaSupport) -> Cow<'_, Request> {
    let has_images =
        |message: &Message| matches!(message, Message::Tool(result) if !result.images.is_empty());
    if !request.messages.iter().any(has_images) {
        return Cow::Borrowed(request);
    }
    let mut request = request.clone();
    let mut room = ImageRoom::default();
    for message in request.messages.iter_mut().rev() {
        let Message::Tool(result) = message else { continue };
        replace_images_of_result(result, support, &mut room);
    }
    Cow::Owned(request)
}

fn replace_images_of_result(result: &mut ToolResult, support: MediaSupport, room: &mut ImageRoom) {
    let mut stand_ins = Vec::new();
    result.images.retain(|image| {
        let reason = match support.images {
            ImageSupport::None | ImageSupport::Native if image.is_pdf() && !support.takes_pdf => {
                "this model cannot see its pages"
            }
            ImageSupport::None if image.is_pdf() && room.take(image) && image.bytes().is_some() => {
                return true;
            }
            ImageSupport::None => "this model cannot see images",
            ImageSupport::TextOnly => "it can't be shown together with tools and this form of answer",
            ImageSupport::Native if !room.take(image) => {
                "it is not shown any more, since there are newer ones"
            }
            ImageSupport::Native if image.bytes().is_none() => "it can't be shown",
            ImageSupport::Native => return true,
        };
        stand_ins.push(format!("[{}: {reason}]", image.describe()));
        false
    });
    for stand_in in stand_ins {
        if !result.text.is_empty() {
            result.text.push('\n');
        }
        result.text.push_str(&stand_in);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Image, MAX_IMAGES, MAX_REQUEST_BYTES};

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
        for images in [ImageSupport::Native, ImageSupport::None, ImageSupport::TextOnly] {
            for takes_pdf in [true, false] {
                let sent = replace_unsent_images(&request, MediaSupport { images, takes_pdf });
                let Message::Tool(result) = &sent.messages[0] else { panic!() };
                let is_sent = takes_pdf && images != ImageSupport::TextOnly;
                assert_eq!(!result.images.is_empty(), is_sent, "{images:?}, {takes_pdf}");
                assert_eq!(result.text.contains("[PDF /report.pdf, 3 pages"), !is_sent, "{}", result.text);
            }
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
        let blind = replace_unsent_images(&one, ImageSupport::None.into());
        let expected = "read\n[image /plot.png, PNG 640×480, 29 bytes: this model cannot see images]";
        assert_eq!(text_of(&blind, 0), (expected.into(), 0));
        assert_eq!(replace_unsent_images(&one, ImageSupport::Native.into()).as_ref(), &one);
        let missing = request(vec![result(vec![image.clone().without_content()])]);
        assert!(
            text_of(&replace_unsent_images(&missing, ImageSupport::Native.into()), 0)
                .0
                .contains("it can't be shown")
        );
        let many = request((0..MAX_IMAGES + 2).map(|_| result(vec![image.clone()])).collect());
        let sent = replace_unsent_images(&many, ImageSupport::Native.into());
        let counts: Vec<usize> = (0..many.messages.len()).map(|at| text_of(&sent, at).1).collect();
        assert_eq!((counts[..2].to_vec(), counts[2..].iter().sum()), (vec![0, 0], MAX_IMAGES));
        let large = Image { size: MAX_REQUEST_BYTES / 3, ..image };
        let four = request((0..4).map(|_| result(vec![large.clone()])).collect());
        let sent = replace_unsent_images(&four, ImageSupport::Native.into());
        assert_eq!((0..4).map(|at| text_of(&sent, at).1).collect::<Vec<_>>(), [0, 1, 1, 1]);
        let none = request(vec![Message::User { text: "x".into() }]);
        assert!(matches!(replace_unsent_images(&none, ImageSupport::None.into()), Cow::Borrowed(_)));
    }
}
