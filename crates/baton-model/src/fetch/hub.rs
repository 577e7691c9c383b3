//! Checkpoints on the Hugging Face hub, through its usual cache: what Python's tools have downloaded is found.

use std::path::PathBuf;

use hf_hub::api::Progress;
use hf_hub::api::sync::{ApiBuilder, ApiRepo};
use hf_hub::{Cache, Repo};
use serde_json::Value;

use super::{FetchError, FetchProgress, OnProgress};

/// The files beside the weights; the first two must be there.
const FILES: [&str; 6] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
];
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// `organisation/name`, as the hub allows it.
pub(super) fn is_id(text: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let part = |part: &str| {
        (1..=96).contains(&part.len())
            && part.chars().all(legal)
            && part.starts_with(|c: char| c.is_ascii_alphanumeric())
    };
    text.split_once('/').is_some_and(|(organisation, name)| part(organisation) && part(name))
}

pub(super) struct Hub {
    cache: Cache,
    endpoint: Option<String>,
}

impl Hub {
    /// `HF_HOME` and `HF_ENDPOINT`, as everywhere.
    pub fn from_env() -> Self {
        Self { cache: Cache::from_env(), endpoint: std::env::var("HF_ENDPOINT").ok() }
    }

    /// The directory of the checkpoint.
    pub fn fetch(&self, id: &str, on_progress: OnProgress<'_>) -> Result<PathBuf, FetchError> {
        if let Ok(directory) = self.cached(id) {
            return Ok(directory);
        }
        let unreachable = |reason: String| FetchError::Hub { id: id.to_owned(), reason };
        let mut builder = ApiBuilder::from_cache(self.cache.clone()).with_progress(false).with_retries(2);
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        let api = builder.build().map_err(|e| unreachable(e.to_string()))?;
        let repo = api.repo(Repo::model(id.to_owned()));
        let listing = repo.info().map_err(|e| unreachable(e.to_string()))?;
        for file in listing.siblings.iter().map(|sibling| sibling.rfilename.as_str()).filter(|f| is_wanted(f))
        {
            self.download(id, &repo, file, on_progress).map_err(unreachable)?;
        }
        // All files are there, and of one revision: had it changed meanwhile, some would be missing.
        self.cached(id).map_err(|what| FetchError::Incomplete { id: id.to_owned(), what })
    }

    fn download(
        &self,
        id: &str,
        repo: &ApiRepo,
        file: &str,
        on_progress: OnProgress<'_>,
    ) -> Result<(), String> {
        if self.cache.repo(Repo::model(id.to_owned())).get(file).is_some() {
            return Ok(());
        }
        let bar = Bar { on_progress, file, done_bytes: 0, total_bytes: 0 };
        repo.download_with_progress(file, bar).map(drop).map_err(|e| format!("{file}: {e}"))
    }

    /// The directory, if all of the checkpoint is in the cache; otherwise what is missing.
    fn cached(&self, id: &str) -> Result<PathBuf, &'static str> {
        let repo = self.cache.repo(Repo::model(id.to_owned()));
        let config = repo.get("config.json").ok_or("config.json")?;
        repo.get("tokenizer.json").ok_or("tokenizer.json")?;
        match repo.get(INDEX) {
            Some(index) => {
                let shards = shards_of(&index).ok_or("readable model.safetensors.index.json")?;
                if !shards.iter().all(|shard| is_plain(shard) && repo.get(shard).is_some()) {
                    return Err("complete set of safetensors");
                }
            }
            None => {
                repo.get(SINGLE).ok_or("model.safetensors")?;
            }
        }
        Ok(config.with_file_name(""))
    }
}

/// The files that an index of shards names.
fn shards_of(index: &std::path::Path) -> Option<Vec<String>> {
    let index: Value = serde_json::from_slice(&std::fs::read(index).ok()?).ok()?;
    let map = index["weight_map"].as_object()?;
    map.values().map(|file| file.as_str().map(str::to_owned)).collect()
}

/// A name without a way out of its directory: it comes from the network.
fn is_plain(file: &str) -> bool {
    !file.is_empty() && !file.starts_with('.') && !file.contains(['/', '\\'])
}

fn is_wanted(file: &str) -> bool {
    is_plain(file) && (FILES.contains(&file) || file.starts_with("model") && file.ends_with(".safetensors"))
}

struct Bar<'a, 'b> {
    on_progress: OnProgress<'b>,
    file: &'a str,
    done_bytes: u64,
    total_bytes: u64,
}

impl Bar<'_, '_> {
    fn report(&mut self) {
        let Self { file, done_bytes, total_bytes, .. } = *self;
        (self.on_progress)(FetchProgress::Downloading { file, done_bytes, total_bytes });
    }
}

impl Progress for Bar<'_, '_> {
    fn init(&mut self, size: usize, _file: &str) {
        self.total_bytes = size as u64;
        self.report();
    }

    fn update(&mut self, size: usize) {
        self.done_bytes += size as u64;
        self.report();
    }

    fn finish(&mut self) {
        self.report();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// A hub that refuses connections, over a cache of the test's own.
    fn offline(cache: &Path) -> Hub {
        Hub { cache: Cache::new(cache.to_owned()), endpoint: Some("http://127.0.0.1:1".to_owned()) }
    }

    fn put(cache: &Path, files: &[(&str, &str)]) -> PathBuf {
        let repo = cache.join("models--org--name");
        std::fs::create_dir_all(repo.join("refs")).unwrap();
        std::fs::write(repo.join("refs/main"), "c0ffee").unwrap();
        let snapshot = repo.join("snapshots/c0ffee");
        std::fs::create_dir_all(&snapshot).unwrap();
        for (name, text) in files {
            std::fs::write(snapshot.join(name), text).unwrap();
        }
        snapshot
    }

    #[test]
    fn a_complete_checkpoint_in_the_cache_needs_no_network() {
        let cache = tempfile::tempdir().unwrap();
        let snapshot = put(cache.path(), &[("config.json", "{}"), ("tokenizer.json", "{}"), (SINGLE, "")]);
        let found = offline(cache.path()).fetch("org/name", &mut |_| ()).unwrap();
        assert_eq!(found.components().collect::<PathBuf>(), snapshot);
    }

    #[test]
    fn every_shard_of_an_index_must_be_there() {
        let cache = tempfile::tempdir().unwrap();
        let index = r#"{"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}}"#;
        put(
            cache.path(),
            &[("config.json", "{}"), ("tokenizer.json", "{}"), (INDEX, index), ("model-1.safetensors", "")],
        );
        assert_eq!(offline(cache.path()).cached("org/name"), Err("complete set of safetensors"));
        put(cache.path(), &[("model-2.safetensors", "")]);
        assert!(offline(cache.path()).cached("org/name").is_ok());
        put(cache.path(), &[(INDEX, r#"{"weight_map":{"a":"../../x"}}"#)]);
        assert!(offline(cache.path()).cached("org/name").is_err());
    }

    #[test]
    fn an_unreachable_hub_says_what_to_do() {
        let cache = tempfile::tempdir().unwrap();
        let error = offline(cache.path()).fetch("org/name", &mut |_| ()).unwrap_err().to_string();
        for part in ["org/name", "could not be asked", "give its directory", "HF_HOME"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn only_plain_names_are_taken_from_the_network() {
        for wanted in ["config.json", "model.safetensors", "model-00001-of-00002.safetensors"] {
            assert!(is_wanted(wanted));
        }
        for unwanted in
            ["../config.json", "sub/model.safetensors", ".safetensors", "pytorch_model.bin", "x.safetensors"]
        {
            assert!(!is_wanted(unwanted), "{unwanted}");
        }
    }
}
