//! Prompts: their text is the objective of a run; embedded resources, links to files and images are its documents. A file is read as
//! the editor has it, if the editor offers that, and otherwise from the disk below the folders of the session.

use std::path::{Path, PathBuf};

use agent_client_protocol::schema::v1::{ContentBlock, EmbeddedResourceResource, ResourceLink};
use data_encoding::BASE64;
use millrace_agent::corpus::{ListedFile, MAX_BYTES, list_folder_files};
use url::Url;

use super::editor::Editor;

/// A prompt as the editor sent it.
#[derive(Debug, Default, PartialEq)]
pub struct Prompt {
    /// The text, with the paths of documents where the user mentioned them.
    pub text: String,
    attachments: Vec<Attachment>,
    /// The length of the text without the mentions at its end.
    written: usize,
}

#[derive(Debug, PartialEq)]
enum Attachment {
    Content {
        path: String,
        bytes: Vec<u8>,
    },
    /// A file or a folder of the user.
    File {
        path: String,
        file: PathBuf,
    },
}

impl Prompt {
    /// Reads the blocks of a prompt. `folder` is the folder of the session.
    pub fn from_blocks(blocks: Vec<ContentBlock>, folder: &Path) -> Result<Self, String> {
        let mut prompt = Self::default();
        for block in blocks {
            match block {
                ContentBlock::Text(text) => {
                    prompt.add_text(&text.text);
                    prompt.written = prompt.text.len();
                }
                ContentBlock::ResourceLink(link) => prompt.add_link(&link, folder),
                ContentBlock::Resource(embedded) => match embedded.resource {
                    EmbeddedResourceResource::TextResourceContents(text) => {
                        let path = path_of_uri(&text.uri, folder);
                        prompt.add_content(path, text.text.into_bytes());
                    }
                    EmbeddedResourceResource::BlobResourceContents(blob) => {
                        let path = path_of_uri(&blob.uri, folder);
                        let bytes = decode_base64(&path, &blob.blob)?;
                        prompt.add_content(path, bytes);
                    }
                    _ => return Err(unknown_block()),
                },
                ContentBlock::Image(image) => {
                    let ending = image.mime_type.rsplit('/').next().unwrap_or("png").to_owned();
                    let path = match &image.uri {
                        Some(uri) => path_of_uri(uri, folder),
                        None => format!("image-{}.{ending}", prompt.attachments.len() + 1),
                    };
                    let bytes = decode_base64(&path, &image.data)?;
                    prompt.add_content(path, bytes);
                }
                ContentBlock::Audio(_) => {
                    return Err("audio in prompts is not supported; send text, files or images".into());
                }
                _ => return Err(unknown_block()),
            }
        }
        // Files that an editor attaches are no part of the question before them.
        let written = prompt.text[..prompt.written].trim_end();
        if written.ends_with(['.', '?', '!', '。', '？', '！']) {
            prompt.text.truncate(written.len());
        }
        prompt.text = prompt.text.trim().to_owned();
        Ok(prompt)
    }

    pub fn has_attachments(&self) -> bool {
        !self.attachments.is_empty()
    }

    /// Adds a piece of text. Pieces are separated, as the editor's separate blocks are.
    fn add_text(&mut self, text: &str) {
        let is_separate = self.text.is_empty()
            || self.text.ends_with(char::is_whitespace)
            || text.starts_with(|c: char| c.is_whitespace() || c.is_ascii_punctuation());
        if !is_separate {
            self.text.push(' ');
        }
        self.text.push_str(text);
    }

    fn add_link(&mut self, link: &ResourceLink, folder: &Path) {
        let Some(file) = file_of_uri(&link.uri) else { return self.add_text(&link.uri) };
        let path = path_of_uri(&link.uri, folder);
        self.add_text(&path);
        if !self
            .attachments
            .iter()
            .any(|one| matches!(one, Attachment::File { file: other, .. } if *other == file))
        {
            self.attachments.push(Attachment::File { path, file });
        }
    }

    fn add_content(&mut self, path: String, bytes: Vec<u8>) {
        self.add_text(&path);
        self.attachments.push(Attachment::Content { path, bytes });
    }

    /// Returns the documents, each under a path of its own.
    pub async fn read_documents(
        self,
        editor: &Editor,
        folders: &[PathBuf],
    ) -> Result<Vec<ListedFile>, String> {
        let mut documents: Vec<ListedFile> = Vec::new();
        let mut add = |mut listed: ListedFile| {
            let taken: Vec<String> = documents.iter().map(|document| document.path.clone()).collect();
            listed.path = free_path(&taken, &listed.path);
            documents.push(listed);
        };
        for attachment in self.attachments {
            match attachment {
                Attachment::Content { path, bytes } => add(ListedFile::from_bytes(path, bytes)),
                Attachment::File { path, file } => {
                    read_file(editor, folders, path, file).await?.into_iter().for_each(&mut add);
                }
            }
        }
        Ok(documents)
    }
}

fn unknown_block() -> String {
    "the prompt has a block of an unknown type; send text, files or images".into()
}

fn decode_base64(path: &str, text: &str) -> Result<Vec<u8>, String> {
    BASE64.decode(text.as_bytes()).map_err(|error| format!("{path} is not valid base64: {error}"))
}

/// Returns the path if it is free, or else with a number.
fn free_path(taken: &[String], path: &str) -> String {
    let numbered = (2..).map(|number| format!("{path} ({number})"));
    let mut candidates = std::iter::once(path.to_owned()).chain(numbered);
    candidates.find(|candidate| !taken.contains(candidate)).expect("there are more numbers than documents")
}

fn file_of_uri(uri: &str) -> Option<PathBuf> {
    match Url::parse(uri) {
        Ok(url) if url.scheme() == "file" => url.to_file_path().ok(),
        Ok(_) => None,
        // Some editors send paths.
        Err(_) => Some(PathBuf::from(uri)).filter(|path| path.is_absolute()),
    }
}

/// Returns the path under which agents see a resource: that below the session's folder, or the last part of its URI.
fn path_of_uri(uri: &str, folder: &Path) -> String {
    if let Some(file) = file_of_uri(uri) {
        let below = file.strip_prefix(folder).ok().filter(|below| !below.as_os_str().is_empty());
        let name = below.or_else(|| file.file_name().map(Path::new)).unwrap_or(&file);
        return name.to_string_lossy().into_owned();
    }
    let without_query = uri.split(['?', '#']).next().unwrap_or(uri).trim_end_matches('/');
    let last = without_query.rsplit('/').next().filter(|last| !last.is_empty());
    last.unwrap_or("resource").to_owned()
}

/// `true` if a path is below one of the folders when all links are followed.
fn is_below(folders: &[PathBuf], path: &Path) -> bool {
    let Ok(path) = path.canonicalize() else { return false };
    folders.iter().filter_map(|folder| folder.canonicalize().ok()).any(|folder| path.starts_with(folder))
}

async fn read_file(
    editor: &Editor,
    folders: &[PathBuf],
    path: String,
    file: PathBuf,
) -> Result<Vec<ListedFile>, String> {
    let is_allowed = is_below(folders, &file);
    if is_allowed && file.is_dir() {
        let listed = tokio::task::spawn_blocking(move || list_folder_files(&file)).await;
        let (mut files, _) =
            listed.expect("listing files does not panic").map_err(|error| error.to_string())?;
        files.iter_mut().for_each(|file| file.path = format!("{path}/{}", file.path));
        return Ok(files);
    }
    let size = file.metadata().map_or(0, |metadata| metadata.len());
    if is_allowed && size > MAX_BYTES {
        return Err(format!("{path} has more than {} MiB", MAX_BYTES / (1024 * 1024)));
    }
    let on_disk = match is_allowed {
        true => tokio::fs::read(&file).await.ok(),
        false => None,
    };
    // An editor has texts only, and may have changes that are not saved.
    let is_text = on_disk.as_ref().is_none_or(|bytes| std::str::from_utf8(bytes).is_ok());
    let in_editor = if is_text { editor.read_text_file(&file).await } else { None };
    match in_editor.map(String::into_bytes).or(on_disk) {
        Some(bytes) => Ok(vec![ListedFile::from_bytes(path, bytes)]),
        None if is_allowed => Err(format!("{path} can't be read")),
        None => Err(format!(
            "{} can't be read: the editor does not have it, and it is not below the folder of the session",
            file.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn prompt(blocks: serde_json::Value) -> Result<Prompt, String> {
        Prompt::from_blocks(serde_json::from_value(blocks).unwrap(), Path::new("/home/ann/work"))
    }

    #[test]
    fn mentions_stay_in_the_text_and_are_documents() {
        let read = prompt(json!([
            { "type": "text", "text": "Compare" },
            { "type": "resource_link", "name": "a.md", "uri": "file:///home/ann/work/docs/a%20b.md" },
            { "type": "text", "text": " with " },
            { "type": "resource", "resource": { "uri": "file:///etc/notes.txt", "text": "one" } },
            { "type": "text", "text": ", and see " },
            { "type": "resource_link", "name": "x", "uri": "https://example.com/x" },
            { "type": "resource", "resource": { "uri": "zed:///thread/7?x=1", "blob": "dHdv" } },
        ]))
        .unwrap();
        assert_eq!(read.text, "Compare docs/a b.md with notes.txt, and see https://example.com/x 7");
        let content =
            |path: &str, bytes: &[u8]| Attachment::Content { path: path.into(), bytes: bytes.into() };
        assert_eq!(
            read.attachments,
            [
                Attachment::File { path: "docs/a b.md".into(), file: "/home/ann/work/docs/a b.md".into() },
                content("notes.txt", b"one"),
                content("7", b"two"),
            ]
        );
    }

    #[test]
    fn files_behind_a_sentence_are_no_part_of_it() {
        let file = json!({ "type": "resource_link", "name": "a", "uri": "file:///home/ann/work/a.md" });
        let text = |before: &str| prompt(json!([{ "type": "text", "text": before }, file])).unwrap().text;
        assert_eq!(text("When does it open? "), "When does it open?");
        assert_eq!(text("Summarize"), "Summarize a.md");
        let followed =
            json!([{ "type": "text", "text": "Look. " }, file, { "type": "text", "text": " is wrong" }]);
        assert_eq!(prompt(followed).unwrap().text, "Look. a.md is wrong");
    }

    #[test]
    fn blocks_that_nothing_can_read_are_refused() {
        let audio = prompt(json!([{ "type": "audio", "data": "", "mimeType": "audio/wav" }]));
        assert!(audio.unwrap_err().contains("audio"));
        let blob = prompt(json!([{ "type": "image", "data": "?", "mimeType": "image/png" }]));
        assert!(blob.unwrap_err().contains("image-1.png is not valid base64"));
    }

    #[test]
    fn documents_with_one_path_are_numbered() {
        let taken = ["a".to_owned(), "a (2)".to_owned()];
        assert_eq!(free_path(&taken, "a"), "a (3)");
        assert_eq!(free_path(&taken, "b"), "b");
    }

    #[test]
    fn links_out_of_the_folders_are_not_below_them() {
        let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        std::fs::write(folder.path().join("mine"), "m").unwrap();
        std::os::unix::fs::symlink(outside.path().join("secret"), folder.path().join("link")).unwrap();
        let folders = [folder.path().to_owned()];
        assert!(is_below(&folders, &folder.path().join("mine")));
        assert!(!is_below(&folders, &folder.path().join("link")));
        assert!(!is_below(&folders, &outside.path().join("secret")));
    }
}
