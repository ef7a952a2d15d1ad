//! Downloads of files as they are, for documents that a user names by their URL. [`super::fetch`] has the limits on
//! redirects and time, and [`super::url_policy`] decides which URLs are allowed.

use url::Url;

use super::fetch::{FetchError, FetchTool};
use super::url_policy::FetchSettings;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Download {
    /// The address that it was read from, after redirects.
    pub url: Url,
    /// Its content type without parameters; empty if the server gave none.
    pub content_type: String,
    pub bytes: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot download {url}: {reason}")]
pub struct DownloadError {
    pub url: String,
    reason: String,
}

pub async fn download(
    url: &str,
    settings: FetchSettings,
    max_bytes: usize,
) -> Result<Download, DownloadError> {
    let failed = |reason: String| DownloadError { url: url.to_owned(), reason };
    let tool = FetchTool::new(settings).map_err(|error| failed(error.to_string()))?;
    tool.download_file(url, max_bytes).await.map_err(|error: FetchError| failed(error.to_string()))
}
