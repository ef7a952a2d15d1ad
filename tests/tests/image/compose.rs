//! `deploy/compose/compose.yaml` as the engine would read it, and whether what it says of our programs is so.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::roots::repository;

/// The file.
pub struct Compose(Value);

/// A service.
#[derive(Clone, Copy)]
pub struct Service<'a> {
    file: &'a Value,
    /// Its name.
    pub name: &'a str,
    its: &'a Value,
}

impl Compose {
    /// Reads it, with what the environment leaves open set as its own text says.
    ///
    /// # Panics
    /// It is no such file.
    pub fn read() -> Self {
        let text = fs::read_to_string(folder().join("compose.yaml")).unwrap();
        let mut file: Value = serde_saphyr::from_str(&text).unwrap();
        merge(&mut file);
        interpolate(&mut file);
        Self(file)
    }

    /// All services.
    pub fn services(&self) -> impl Iterator<Item = Service<'_>> {
        let services = self.0["services"].as_object().unwrap();
        services.iter().map(|(name, its)| Service { file: &self.0, name, its })
    }

    /// A service by name.
    ///
    /// # Panics
    /// There is none.
    pub fn service<'a>(&'a self, name: &'a str) -> Service<'a> {
        self.services().find(|service| service.name == name).unwrap_or_else(|| panic!("no service {name}"))
    }

    /// The files that it names, from the folder of the repository on: those of configs and those of secrets.
    pub fn files(&self, of: &str) -> Vec<PathBuf> {
        let all = self.0[of].as_object().unwrap().values();
        all.map(|one| folder().join(one["file"].as_str().unwrap())).collect()
    }

    /// The names of its networks, each with whether it has a way out.
    pub fn networks(&self) -> BTreeMap<String, bool> {
        let all = self.0["networks"].as_object().unwrap().iter();
        all.map(|(name, network)| (name.clone(), network["internal"] != true)).collect()
    }
}

impl Service<'_> {
    /// The name of its image without what stands before it, and its tag.
    pub fn image(&self) -> (String, String) {
        let (name, tag) = self.its["image"].as_str().unwrap().rsplit_once(':').unwrap();
        (name.rsplit('/').next().unwrap().to_owned(), tag.to_owned())
    }

    /// Its arguments.
    pub fn command(&self) -> Vec<String> {
        words(&self.its["command"])
    }

    /// Its environment.
    pub fn environment(&self) -> Vec<(String, String)> {
        let all = self.its["environment"].as_object().into_iter().flatten();
        all.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect()
    }

    /// How many there are.
    pub fn replicas(&self) -> u64 {
        self.its["deploy"]["replicas"].as_u64().unwrap_or(1)
    }

    /// Its temporary folders.
    pub fn temporary(&self) -> Vec<String> {
        words(&self.its["tmpfs"])
    }

    /// Its volumes, by their names or the folders that are shown.
    pub fn volumes(&self) -> Vec<(String, String)> {
        let all = words(&self.its["volumes"]).into_iter();
        all.map(|volume| {
            let (what, place) = volume.trim_end_matches(":ro").rsplit_once(':').unwrap();
            (what.to_owned(), place.to_owned())
        })
        .collect()
    }

    /// The networks it is on.
    pub fn networks(&self) -> Vec<String> {
        let networks = &self.its["networks"];
        networks.as_object().map_or_else(|| words(networks), |named| named.keys().cloned().collect())
    }

    /// The names by which others reach it.
    pub fn names(&self) -> Vec<String> {
        let networks = self.its["networks"].as_object().into_iter().flatten();
        let more = networks.flat_map(|(_, network)| words(&network["aliases"]));
        more.chain([self.name.to_owned()]).collect()
    }

    /// Its ports that are open to others than services.
    pub fn ports(&self) -> Vec<String> {
        words(&self.its["ports"])
    }

    /// The value of a setting of its own.
    pub fn setting(&self, name: &str) -> &Value {
        &self.its[name]
    }

    /// Its configs and secrets: each as its place in the container, and the file that stands there.
    pub fn files(&self, of: &str) -> Vec<(String, PathBuf)> {
        let all = self.its[of].as_array().into_iter().flatten();
        all.map(|one| {
            let source = one.as_str().unwrap_or_else(|| one["source"].as_str().unwrap());
            let target = one["target"].as_str().unwrap_or(source);
            let place =
                if target.starts_with('/') { target.into() } else { format!("/run/secrets/{target}") };
            let file = self.file[of][source]["file"].as_str().unwrap_or_else(|| panic!("no {of} {source}"));
            (place, folder().join(file))
        })
        .collect()
    }
}

/// The folder of the file.
pub fn folder() -> PathBuf {
    repository().join("deploy/compose")
}

fn words(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(|word| word.as_str().unwrap().to_owned()).collect()
}

/// Puts what stands below `<<` beside it, where it is not said otherwise.
fn merge(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(merge);
            if let Some(Value::Object(more)) = fields.remove("<<") {
                for (name, value) in more {
                    fields.entry(name).or_insert(value);
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(merge),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Sets what stands in `${…}`: to what it is if nobody says, or to the user of the images.
fn interpolate(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(interpolate),
        Value::Array(all) => all.iter_mut().for_each(interpolate),
        Value::String(text) => {
            while let Some((before, rest)) = text.split_once("${") {
                let (inside, after) = rest.split_once('}').unwrap();
                let is = match inside.split_once(":-") {
                    Some((_, otherwise)) => otherwise,
                    None if inside.starts_with("MILLRACE_USER:?") => "65532:65532",
                    None => panic!("nothing says what {inside} is"),
                };
                *text = format!("{before}{is}{after}");
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
