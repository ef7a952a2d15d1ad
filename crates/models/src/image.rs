//! Images in a conversation, and PDF files whose pages a model sees: their description, the limits of providers, and the text that
//! takes their place elsewhere. A request names them by their SHA-256; the bytes are attached before it is sent and are never serialised.
//!
//! The estimate and the limits are those of the strictest provider, Anthropic (<https://platform.claude.com/docs/en/build-with-claude/vision>):
//! an image is scaled to 1,568 pixels and then has at most about 1,600 tokens, has at most 5 MB as base64 and 8,000 pixels a side, and at
//! most 20 images of that size fit a request. At OpenAI an image of high detail has up to about 1,500 tokens, at Gemini 258 for each 768
//! pixels. A page of a PDF file is an image and its text, 1,500 to 3,000 tokens at Anthropic
//! (<https://platform.claude.com/docs/en/build-with-claude/pdf-support>).
//!
//! # Invariants
//!
//! - I129: An image reaches the model from any worker that takes the attempt over, as it was when it was read; journals have only
//!   its hash. (`crates/agent/tests/turn/images.rs::image_that_was_read_is_sent_and_recorded_by_its_hash`,
//!   `tests/tests/images.rs::image_is_sent_by_the_worker_that_takes_over`)

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub const IMAGE_TOKENS: usize = 1_600;
/// The estimated number of tokens of a page of a PDF file.
pub const PDF_PAGE_TOKENS: usize = 2_500;
/// The maximum size of an image in bytes: 5 MB as base64.
pub const MAX_IMAGE_BYTES: usize = 3_750_000;
pub const MAX_IMAGE_SIDE: usize = 8_000;
/// The maximum number of images and pages of a request; of more, the newest are sent.
pub const MAX_IMAGES: usize = 20;
/// The maximum size of a PDF file that is shown, in bytes.
pub const MAX_PDF_BYTES: usize = 10_000_000;
/// The maximum size of all images of a request in bytes: Gemini takes requests of 20 MB.
pub(crate) const MAX_REQUEST_BYTES: u64 = 14_000_000;

/// The format of an image. All providers take these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageFormat {
    Png,
    Jpeg,
    Gif,
    Webp,
    Pdf,
}

impl ImageFormat {
    pub const fn media_type(self) -> &'static str {
        self.media_type_and_name().0
    }

    pub const fn name(self) -> &'static str {
        self.media_type_and_name().1
    }

    const fn media_type_and_name(self) -> (&'static str, &'static str) {
        match self {
            Self::Png => ("image/png", "PNG"),
            Self::Jpeg => ("image/jpeg", "JPEG"),
            Self::Gif => ("image/gif", "GIF"),
            Self::Webp => ("image/webp", "WebP"),
            Self::Pdf => ("application/pdf", "PDF"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    pub name: String,
    pub format: ImageFormat,
    /// Its width in pixels; 0 for a PDF file.
    pub width: u32,
    /// Its height in pixels; 0 for a PDF file.
    pub height: u32,
    /// The number of its pages; 0 for an image.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pages: u32,
    pub size: u64,
    pub sha256: String,
    #[serde(skip)]
    pub content: ImageContent,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The bytes of an image, if they are attached. All values are equal: the hash in [`Image`] identifies the content.
#[derive(Clone, Default)]
pub struct ImageContent(Option<Arc<[u8]>>);

impl PartialEq for ImageContent {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ImageContent {}

impl fmt::Debug for ImageContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(bytes) => write!(f, "{} bytes", bytes.len()),
            None => f.write_str("none"),
        }
    }
}

/// The reason for which bytes are no image that a model can be shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidImage {
    #[error("it is no PNG, JPEG, GIF or WebP image")]
    Format,
    #[error("it is damaged: {0}")]
    Damaged(String),
    #[error("it has {0} bytes; the maximum is {MAX_IMAGE_BYTES}")]
    TooLarge(usize),
    #[error("it has {0}×{1} pixels; the maximum is {MAX_IMAGE_SIDE} a side")]
    TooManyPixels(usize, usize),
    #[error("it has {0} pages; the maximum is {MAX_IMAGES}")]
    Pages(u32),
    #[error("it has {0} bytes; the maximum is {MAX_PDF_BYTES}")]
    LargePdf(usize),
}

impl Image {
    /// Reads the header of an image. Its bytes are attached.
    pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Self, InvalidImage> {
        let format = find_format(bytes).ok_or(InvalidImage::Format)?;
        if bytes.len() > MAX_IMAGE_BYTES {
            return Err(InvalidImage::TooLarge(bytes.len()));
        }
        let size = imagesize::blob_size(bytes).map_err(|error| InvalidImage::Damaged(error.to_string()))?;
        let is_allowed = |side: usize| (1..=MAX_IMAGE_SIDE).contains(&side);
        if !is_allowed(size.width) || !is_allowed(size.height) {
            return Err(InvalidImage::TooManyPixels(size.width, size.height));
        }
        let side = |side: usize| u32::try_from(side).unwrap_or(u32::MAX);
        Ok(Self {
            width: side(size.width),
            height: side(size.height),
            ..Self::with_bytes(name, format, bytes)
        })
    }

    /// Describes a PDF file with this number of pages. Its bytes are attached.
    pub fn from_pdf(name: &str, bytes: &[u8], pages: u32) -> Result<Self, InvalidImage> {
        if bytes.len() > MAX_PDF_BYTES {
            return Err(InvalidImage::LargePdf(bytes.len()));
        }
        if pages == 0 || pages as usize > MAX_IMAGES {
            return Err(InvalidImage::Pages(pages));
        }
        Ok(Self { pages, ..Self::with_bytes(name, ImageFormat::Pdf, bytes) })
    }

    fn with_bytes(name: &str, format: ImageFormat, bytes: &[u8]) -> Self {
        Self {
            name: name.to_owned(),
            format,
            width: 0,
            height: 0,
            pages: 0,
            size: bytes.len() as u64,
            sha256: Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect(),
            content: ImageContent(Some(bytes.into())),
        }
    }

    pub fn is_pdf(&self) -> bool {
        self.format == ImageFormat::Pdf
    }

    pub fn file_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }

    pub fn tokens(&self) -> usize {
        if self.is_pdf() { PDF_PAGE_TOKENS * self.pages as usize } else { IMAGE_TOKENS }
    }

    pub fn to_base64(&self) -> String {
        self.bytes().map(|bytes| data_encoding::BASE64.encode(bytes)).unwrap_or_default()
    }

    pub fn to_data_url(&self) -> String {
        format!("data:{};base64,{}", self.format.media_type(), self.to_base64())
    }

    pub fn with_content(self, bytes: Arc<[u8]>) -> Self {
        Self { content: ImageContent(Some(bytes)), ..self }
    }

    pub fn without_content(self) -> Self {
        Self { content: ImageContent(None), ..self }
    }

    pub fn bytes(&self) -> Option<&Arc<[u8]>> {
        self.content.0.as_ref()
    }

    /// A description: `image /plot.png, PNG 640×480, 12 kB`, or `PDF /report.pdf, 3 pages, 40 kB`.
    pub fn describe(&self) -> String {
        let Self { name, format, width, height, pages, size, .. } = self;
        let size =
            if *size < 1_000 { format!("{size} bytes") } else { format!("{} kB", size.div_ceil(1_000)) };
        match (self.is_pdf(), pages) {
            (true, 1) => format!("PDF {name}, 1 page, {size}"),
            (true, pages) => format!("PDF {name}, {pages} pages, {size}"),
            (false, _) => format!("image {name}, {} {width}×{height}, {size}", format.name()),
        }
    }
}

fn find_format(bytes: &[u8]) -> Option<ImageFormat> {
    let is_webp = bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP");
    [
        (bytes.starts_with(b"\x89PNG\r\n\x1a\n"), ImageFormat::Png),
        (bytes.starts_with(b"\xff\xd8\xff"), ImageFormat::Jpeg),
        (bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a"), ImageFormat::Gif),
        (is_webp, ImageFormat::Webp),
    ]
    .into_iter()
    .find_map(|(is_it, format)| is_it.then_some(format))
}

/// The images that a request can still have, counted from the newest one.
#[derive(Debug, Clone, Copy)]
pub struct ImageRoom {
    images: usize,
    bytes: u64,
}

impl Default for ImageRoom {
    fn default() -> Self {
        Self { images: MAX_IMAGES, bytes: MAX_REQUEST_BYTES }
    }
}

impl ImageRoom {
    /// Takes an image, if there is room for it. All older images are left out after the first one without room.
    pub fn take(&mut self, image: &Image) -> bool {
        let pages = image.pages.max(1) as usize;
        let has_room = pages <= self.images && image.size <= self.bytes;
        *self = match has_room {
            true => Self { images: self.images - pages, bytes: self.bytes - image.size },
            false => Self { images: 0, bytes: 0 },
        };
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of a PNG image of this size.
    fn png(width: u32, height: u32) -> Vec<u8> {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        bytes.extend(width.to_be_bytes());
        bytes.extend(height.to_be_bytes());
        bytes.extend([8, 2, 0, 0, 0]);
        bytes
    }

    #[test]
    fn header_of_an_image_is_read() {
        let image = Image::from_bytes("/plot.png", &png(640, 480)).unwrap();
        assert_eq!((image.format, image.width, image.height), (ImageFormat::Png, 640, 480));
        assert_eq!(image.describe(), "image /plot.png, PNG 640×480, 29 bytes");
        let gif = b"GIF89a\x02\0\x03\0\0\0\0";
        assert_eq!(Image::from_bytes("a", gif).unwrap().describe(), "image a, GIF 2×3, 13 bytes");
        let webp = b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\x01\0\0\x02\0\0";
        assert_eq!(Image::from_bytes("a", webp).unwrap().describe(), "image a, WebP 2×3, 30 bytes");
        for (bytes, error) in [
            (b"text".to_vec(), InvalidImage::Format),
            (b"RIFF\x16\0\0\0WAVEfmt \x0a\0\0\0".to_vec(), InvalidImage::Format),
            (png(8_001, 1), InvalidImage::TooManyPixels(8_001, 1)),
            (png(0, 1), InvalidImage::TooManyPixels(0, 1)),
            ([png(1, 1), vec![0; MAX_IMAGE_BYTES]].concat(), InvalidImage::TooLarge(MAX_IMAGE_BYTES + 29)),
        ] {
            assert_eq!(Image::from_bytes("a", &bytes), Err(error));
        }
        let cut = Image::from_bytes("a", &png(1, 1)[..12]).unwrap_err();
        assert!(matches!(cut, InvalidImage::Damaged(_)), "{cut}");
    }

    #[test]
    fn pages_of_pdf_files_are_images_of_models_that_take_them() {
        let pdf = Image::from_pdf("/report.pdf", b"%PDF-1.7", 3).unwrap();
        assert_eq!(pdf.describe(), "PDF /report.pdf, 3 pages, 8 bytes");
        assert_eq!((pdf.tokens(), pdf.format.media_type()), (7_500, "application/pdf"));
        assert_eq!(Image::from_pdf("a", b"%PDF-1.7", 21), Err(InvalidImage::Pages(21)));
        assert_eq!(Image::from_pdf("a", b"%PDF-1.7", 0), Err(InvalidImage::Pages(0)));
        let mut room = ImageRoom::default();
        let taken = (0..8).filter(|_| room.take(&pdf)).count();
        assert_eq!(taken, MAX_IMAGES / 3, "each page counts");
    }

    #[test]
    fn any_prefix_of_an_image_is_read_or_refused() {
        for whole in [png(3, 4), b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0".to_vec()] {
            for end in 0..whole.len() {
                drop(Image::from_bytes("a", &whole[..end]));
            }
        }
    }

    #[test]
    fn bytes_are_not_serialised() {
        let image = Image::from_bytes("/plot.png", &png(1, 1)).unwrap();
        let text = serde_json::to_string(&image).unwrap();
        assert!(!text.contains("content"), "{text}");
        let read: Image = serde_json::from_str(&text).unwrap();
        assert_eq!((read.bytes(), &read), (None, &image));
    }
}
