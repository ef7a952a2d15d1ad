//! The variables of the environment that change what the agents of an evaluation can do, know and cost. Settings files have
//! been read into the environment when a command starts.

use std::collections::BTreeMap;
use std::path::Path;

use clap::builder::{BoolishValueParser, TypedValueParser};
use millrace_runtime::store::blobs::sha256_hex;

/// The settings that change prompts or costs, other than models.
const SETTINGS: [&str; 2] = ["MILLRACE_CONTEXT_WINDOW", PRICES];
/// The setting that names a file. The content of the file determines samples.
const PRICES: &str = "MILLRACE_PRICES";
/// The variables that choose the search engine.
const SEARCH_ENGINES: [&str; 2] = [TAVILY_KEY, "SEARXNG_URL"];
/// The variable with a secret, of which only the presence counts.
const TAVILY_KEY: &str = "TAVILY_API_KEY";
/// The setting that offers the web to agents, other than in evaluations.
const WEB: &str = "MILLRACE_WEB";

/// The variables of a process that are set and not empty.
#[derive(Debug, Clone, Default)]
pub struct EvaluationEnvironment(BTreeMap<String, String>);

impl EvaluationEnvironment {
    pub fn of_this_process() -> Self {
        Self::from_variables(
            std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
        )
    }

    pub(super) fn from_variables(variables: impl Iterator<Item = (String, String)>) -> Self {
        Self(variables.filter(|(_, value)| !value.is_empty()).collect())
    }

    pub fn variable(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }

    /// Returns the models of a configuration that names none.
    pub fn default_models(&self) -> Vec<String> {
        let models = self.0.get("MILLRACE_MODEL").map(String::as_str).unwrap_or_default();
        models.split(';').filter(|model| !model.trim().is_empty()).map(str::to_owned).collect()
    }

    /// Returns what determines a sample of any configuration.
    pub fn settings_parts(&self) -> Vec<String> {
        let part = |name: &str| {
            let value = self.0.get(name)?;
            let content = (name == PRICES).then(|| std::fs::read(Path::new(value)).ok()).flatten();
            Some(format!("{name} {}", content.map_or_else(|| value.clone(), |bytes| sha256_hex(&bytes))))
        };
        SETTINGS.iter().filter_map(|name| part(name)).collect()
    }

    /// Returns what determines a sample of a configuration that reads the web.
    pub fn search_parts(&self) -> Vec<String> {
        let part = |name: &&str| {
            let value = self.0.get(*name)?;
            Some(format!("{name} {}", if *name == TAVILY_KEY { "set" } else { value }))
        };
        SEARCH_ENGINES.iter().filter_map(part).collect()
    }

    /// Returns lines on the variables that change what agents do, and on those that would outside of an evaluation.
    /// `reads_web` is `true` if agents of a configuration may read the web, `lacks_web` if `web_research` is not offered to a
    /// configuration.
    pub fn notes(&self, reads_web: bool, lacks_web: bool) -> Vec<String> {
        let mut notes = Vec::new();
        let settings = SETTINGS.iter().filter_map(|name| Some(format!("{name}={}", self.0.get(*name)?)));
        let engines: Vec<String> = SEARCH_ENGINES
            .iter()
            .filter(|name| self.0.contains_key(**name))
            .map(|name| (*name).to_owned())
            .collect();
        // Without their values: an address may contain a password.
        let active: Vec<String> = settings.chain(engines.iter().filter(|_| reads_web).cloned()).collect();
        if !active.is_empty() {
            notes.push(format!("millrace: settings that change what agents do: {}", active.join(", ")));
        }
        let unused: Vec<String> =
            self.has_web_setting().then(|| WEB.to_owned()).into_iter().chain(engines).collect();
        if lacks_web && !unused.is_empty() {
            notes.push(format!(
                "millrace: {} offers no web_research in an evaluation; use --web, or `web: true` in the file",
                unused.join(", ")
            ));
        }
        notes
    }

    /// `true` if the variable switches the web on; it has the same spellings as for a cluster.
    fn has_web_setting(&self) -> bool {
        let (parser, command) = (BoolishValueParser::new(), clap::Command::default());
        let is_on = |value: &String| parser.parse_ref(&command, None, value.as_ref()).unwrap_or_default();
        self.0.get(WEB).is_some_and(is_on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> EvaluationEnvironment {
        let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        EvaluationEnvironment::from_variables(owned)
    }

    #[test]
    fn settings_that_change_agents_count_and_are_named() {
        let all = environment(&[
            ("MILLRACE_CONTEXT_WINDOW", "2048"),
            ("MILLRACE_LOG", "debug"),
            ("MILLRACE_WEB", "true"),
            ("SEARXNG_URL", "http://user:secret@search.lan"),
            ("TAVILY_API_KEY", "secret"),
        ]);
        assert_eq!(all.settings_parts(), ["MILLRACE_CONTEXT_WINDOW 2048"]);
        assert_eq!(all.search_parts(), ["TAVILY_API_KEY set", "SEARXNG_URL http://user:secret@search.lan"]);
        let with_web = all.notes(true, false);
        assert_eq!(
            with_web,
            [
                "millrace: settings that change what agents do: MILLRACE_CONTEXT_WINDOW=2048, TAVILY_API_KEY, SEARXNG_URL"
            ]
        );
        let without = all.notes(false, true);
        assert_eq!(without[0], "millrace: settings that change what agents do: MILLRACE_CONTEXT_WINDOW=2048");
        assert!(
            without[1].contains("MILLRACE_WEB, TAVILY_API_KEY, SEARXNG_URL offers no web_research"),
            "{without:?}"
        );
        for quiet in [&[][..], &[("MILLRACE_WEB", "false")], &[("SEARXNG_URL", "")]] {
            assert!(environment(quiet).notes(false, true).is_empty(), "{quiet:?}");
        }
    }

    #[test]
    fn price_file_counts_by_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("prices.toml");
        let parts = |text: &str| {
            std::fs::write(&file, text).unwrap();
            environment(&[("MILLRACE_PRICES", file.to_str().unwrap())]).settings_parts()
        };
        assert_eq!(parts("a"), parts("a"));
        assert_ne!(parts("a"), parts("b"));
    }
}
