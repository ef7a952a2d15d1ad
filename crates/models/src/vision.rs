//! The models that see images and those that take PDF files, by their names. It owns the table; the settings of a model take precedence.

/// Models that see images, or do not, by a part of their names. The first match counts; all others do not.
const MODELS: [(&str, bool); 37] = [
    ("gpt-3", false),
    ("gpt-oss", false),
    ("gpt-4-32k", false),
    ("gpt-4.1", true),
    ("gpt-4o-audio", false),
    ("gpt-4o", true),
    ("gpt-4-turbo", true),
    ("gpt-5", true),
    ("gpt-6", true),
    ("o1-mini", false),
    ("o3-mini", false),
    ("o4-mini", true),
    ("claude-2", false),
    ("claude-instant", false),
    ("claude", true),
    ("gemini-embedding", false),
    ("gemini", true),
    ("gemma3:1b", false),
    ("gemma-3-1b", false),
    ("gemma3", true),
    ("gemma-3", true),
    ("gemma-4", true),
    ("grok-4", true),
    ("grok-2-vision", true),
    ("pixtral", true),
    ("mistral-medium", true),
    ("mistral-small", true),
    ("llama-4", true),
    ("llama4", true),
    ("llava", true),
    ("moondream", true),
    ("minicpm-v", true),
    ("-vision", true),
    ("qwen2.5vl", true),
    ("qwen3vl", true),
    ("-vl", true),
    ("glm-4.5v", true),
];
/// Models that see images, by their whole names: the beginnings of others that do not.
const WHOLE_NAMES: [&str; 2] = ["o1", "o3"];

/// `true` if a model of this name, without the provider, is known to see images.
#[must_use]
pub fn sees_images(model: &str) -> bool {
    let name = model.to_lowercase();
    let own = name.rsplit('/').next().unwrap_or(&name);
    if WHOLE_NAMES.iter().any(|whole| own == *whole || own.strip_prefix(whole).is_some_and(is_dated)) {
        return true;
    }
    MODELS.iter().find(|(part, _)| own.contains(part)).is_some_and(|(_, sees)| *sees)
}

/// Models that see images and take no PDF files, by a part of their names.
const WITHOUT_PDF: [&str; 3] = ["claude-3-haiku", "claude-3-opus", "gpt-4-turbo"];

/// `true` if a model of this name takes PDF files at its maker's own API.
#[must_use]
pub fn takes_pdf(model: &str) -> bool {
    let name = model.to_lowercase();
    sees_images(&name) && !WITHOUT_PDF.iter().any(|part| name.contains(part))
}

/// `true` for the end of a dated name, such as `-2025-04-16`, or `-pro`.
fn is_dated(rest: &str) -> bool {
    rest == "-pro" || rest.strip_prefix('-').is_some_and(|date| date.starts_with("20"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_that_see_images_are_known() {
        for (name, sees) in [
            ("gpt-5", true),
            ("gpt-4o-mini", true),
            ("gpt-4", false),
            ("gpt-3.5-turbo", false),
            ("o3", true),
            ("o3-2025-04-16", true),
            ("o3-mini", false),
            ("o1", true),
            ("claude-sonnet-5-5", true),
            ("anthropic/claude-3-haiku", true),
            ("gemini-2.5-pro", true),
            ("qwen3:8b", false),
            ("qwen2.5vl:7b", true),
            ("Qwen/Qwen3-VL-8B-Instruct", true),
            ("llama3.2-vision", true),
            ("gemma3:4b", true),
            ("gemma3:1b", false),
            ("gpt-oss:20b", false),
            ("default", false),
        ] {
            assert_eq!(sees_images(name), sees, "{name}");
        }
    }
}
