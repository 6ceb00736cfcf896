//! Rust source split into code and comments, so that a word in a string or a comment is never taken for code.

/// The two halves of a file. Both have the length and the line breaks of the source; what belongs to the other half,
/// and the inside of every string, is blank.
pub(crate) struct Halves {
    /// The source without comments and without the text of literals.
    pub(crate) code: String,
    /// The comments only, documentation included.
    pub(crate) comments: String,
}

/// Splits `source`. Source that does not lex (an unclosed string) ends in the half it was in.
pub(crate) fn halves(source: &str) -> Halves {
    let mut scanner = Scanner { rest: source, code: String::new(), comments: String::new() };
    while !scanner.rest.is_empty() {
        scanner.step();
    }
    Halves { code: scanner.code, comments: scanner.comments }
}

/// Lines of `text`, numbered from 1.
pub(crate) fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// True when `word` stands in `line` with no letter, digit or underscore on either side.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    word_starts(line, word).next().is_some()
}

/// Byte offsets at which `word` stands alone in `text`.
pub(crate) fn word_starts<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).map(|(start, _)| start).filter(move |&start| {
        !text[..start].ends_with(part_of_name) && !text[start + word.len()..].starts_with(part_of_name)
    })
}

struct Scanner<'a> {
    rest: &'a str,
    code: String,
    comments: String,
}

impl Scanner<'_> {
    fn step(&mut self) {
        if self.rest.starts_with("//") {
            let length = self.rest.find('\n').unwrap_or(self.rest.len());
            self.comment(length);
        } else if self.rest.starts_with("/*") {
            self.comment(block_comment_length(self.rest));
        } else if let Some(length) = self.literal_length() {
            self.blank(length);
        } else {
            // A name is taken whole, so that the r of `for"` cannot start a raw string.
            let name = self.rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(self.rest.len());
            let length = if name > 0 { name } else { self.rest.chars().next().map_or(0, char::len_utf8) };
            self.keep(length);
        }
    }

    /// Length of the literal that starts here, if one does.
    fn literal_length(&self) -> Option<usize> {
        let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| {
            self.rest.strip_prefix(prefix).is_some_and(|after| {
                let raw = prefix.ends_with('r');
                after.starts_with('"')
                    || (raw && after.trim_start_matches('#').starts_with('"') && after.starts_with('#'))
            })
        });
        if let Some(prefix) = prefix {
            let after = &self.rest[prefix.len()..];
            let length = if prefix.ends_with('r') { raw_string_length(after) } else { quoted_length(after, '"')? };
            return Some(prefix.len() + length);
        }
        let prefix = usize::from(self.rest.starts_with("b'"));
        let after = &self.rest[prefix..];
        let inside = after.strip_prefix('\'')?;
        // 'a' and '\n' are characters; 'a alone is a lifetime.
        let first = inside.chars().next()?;
        let is_character = first == '\\' || inside[first.len_utf8()..].starts_with('\'');
        is_character.then(|| quoted_length(after, '\'').map(|length| prefix + length)).flatten()
    }

    fn keep(&mut self, length: usize) {
        self.take(length, true, false);
    }

    fn comment(&mut self, length: usize) {
        self.take(length, false, true);
    }

    fn blank(&mut self, length: usize) {
        self.take(length, false, false);
    }

    fn take(&mut self, length: usize, code: bool, comment: bool) {
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        for c in taken.chars() {
            let put = |half: &mut String, wanted: bool| {
                if wanted || c == '\n' {
                    half.push(c);
                } else {
                    half.extend(std::iter::repeat_n(' ', c.len_utf8()));
                }
            };
            put(&mut self.code, code);
            put(&mut self.comments, comment);
        }
    }
}

fn block_comment_length(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

fn raw_string_length(text: &str) -> usize {
    let hashes = text.len() - text.trim_start_matches('#').len();
    let end = format!("\"{}", "#".repeat(hashes));
    text[hashes + 1..].find(&end).map_or(text.len(), |inside| hashes + 1 + inside + end.len())
}

/// Length of a literal in `quote`s with escapes. None for a character literal that does not close on its line.
fn quoted_length(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == quote {
            return Some(at + 1);
        } else if quote == '\'' && c == '\n' {
            return None;
        }
    }
    Some(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_comments_are_not_code() {
        let source =
            "let a = \"unsafe \\\" { }\"; // unsafe\nlet b = r#\"unsafe \" \"#; /* un /* safe */ */ unsafe {}\n";
        let Halves { code, comments } = halves(source);
        assert_eq!(code.len(), source.len());
        assert_eq!(comments.len(), source.len());
        assert_eq!(word_starts(&code, "unsafe").count(), 1);
        assert_eq!(word_starts(&comments, "unsafe").count(), 1);
        assert!(code.ends_with("unsafe {}\n"), "{code:?}");
    }

    #[test]
    fn lifetimes_and_characters_are_told_apart() {
        let code = halves("fn f<'a>(x: &'a str) -> char { let q = '\"'; let n = '\\''; b'\"'; 'é' }").code;
        assert!(code.contains("<'a>(x: &'a str)"), "{code:?}");
        assert!(code.ends_with(" }") && !code.contains('"'), "{code:?}");
    }

    #[test]
    fn an_unclosed_literal_ends_with_the_file() {
        assert_eq!(halves("a \"bc").code, "a    ");
        assert_eq!(halves("a /* bc").comments, "  /* bc");
        assert_eq!(halves("a r##\"x\"# y").code.trim_end(), "a");
    }

    #[test]
    fn words_stand_alone() {
        assert!(has_word("x.unsafe{", "unsafe"));
        assert!(!has_word("unsafe_code unsafely", "unsafe"));
    }
}
