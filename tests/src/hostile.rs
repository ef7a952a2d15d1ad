//! Text that tries to steer a terminal or a renderer of Markdown, and the checks that no output contains it in effect.

/// Sets the clipboard and the title, clears the screen, changes colours and links (C0 and C1), moves the cursor, reverses
/// the reading direction, and hides text in tags.
pub const CONTROLS: &str = "\u{1b}]52;c;cm0gLXJmIH4=\u{7}\u{1b}]0;title\u{7}\u{1b}[2J\u{9b}31m\u{9d}8;;x\u{9c}\r\u{8}\u{b}\
                            \u{7f}\u{85}\u{202a}\u{202e}\u{2066}\u{2069}\u{200f}\u{61c}\u{2028}\u{e0041}";
/// Markdown and HTML that load something, link somewhere or imitate the structure of the page.
pub const MARKDOWN: &str =
    "![image](http://evil.example/leak) [link](http://evil.example) <img src=//evil.example>";

/// Both.
#[must_use]
pub fn hostile_text(words: &str) -> String {
    format!("{words} {CONTROLS} {MARKDOWN} {words}")
}

/// The characters that no output may contain, listed apart from the product's own rule.
fn is_control_of_terminal(c: char) -> bool {
    let code = u32::from(c);
    let is_c0_or_c1 = (code < 0x20 && code != 0x09 && code != 0x0a) || (0x7f..0xa0).contains(&code);
    let is_direction = matches!(code, 0x61c | 0x200e | 0x200f | 0x202a..=0x202e | 0x2066..=0x2069);
    is_c0_or_c1 || is_direction || matches!(code, 0x2028 | 0x2029 | 0xe0000..=0xe007f)
}

/// Checks that an output contains no such character.
///
/// # Panics
/// It contains one.
pub fn assert_safe_output(what: &str, output: &[u8]) {
    let text = std::str::from_utf8(output).unwrap_or_else(|_| panic!("{what} is no text"));
    if let Some(at) = text.find(is_control_of_terminal) {
        let start = text[..at].rfind('\n').map_or(0, |at| at + 1);
        panic!("{what} has a control character: {:?}", text[start..].lines().next().unwrap_or_default());
    }
}

/// Checks that Markdown loads nothing, and contains neither HTML nor a link to the hosts of [`MARKDOWN`].
///
/// # Panics
/// It does.
pub fn assert_inactive_markdown(what: &str, text: &str) {
    for line in text.lines() {
        assert!(!line.contains("![image]") && !line.contains("![image\\]"), "{what} has an image: {line}");
        let links = line.match_indices("](http").filter(|(at, _)| !line[..*at].ends_with('\\'));
        let is_escaped = |at: usize| line[..at].rfind('[').is_some_and(|open| line[..open].ends_with('\\'));
        assert!(links.filter(|(at, _)| !is_escaped(*at)).count() == 0, "{what} has a link: {line}");
        let html = line.match_indices("<img").filter(|(at, _)| !line[..*at].ends_with('\\'));
        assert_eq!(html.count(), 0, "{what} has HTML: {line}");
    }
}
