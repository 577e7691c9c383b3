//! What can be learnt of an endpoint before anything is measured.

use anyhow::{Context, Result};
use baton_types::{EngineInfo, TokenId};
use baton_workload::result::{CacheState, EngineConditions, System};
use baton_workload::{Vocabulary, words};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::endpoint::Endpoint;
use crate::options::Options;
use crate::scrape::Target;

/// An endpoint, and what is behind it as far as it can be seen.
#[derive(Clone, Debug)]
pub(crate) struct Survey {
    pub endpoint: Endpoint,
    pub system: System,
    pub vocabulary: Vocabulary,
    /// Whose metrics are looked at.
    pub targets: Vec<Target>,
}

/// What this program was told of the endpoint, or made it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub name: String,
    pub strategy: Option<String>,
    pub url: String,
    pub engines: Vec<String>,
    pub flags: Vec<String>,
    pub commit: Option<String>,
}

impl Survey {
    /// # Errors
    /// If an address is none, nothing answers, or nothing is served.
    pub async fn of(known: Known, options: &Options) -> Result<Self> {
        let key = options.api_key.as_deref();
        let endpoint = Endpoint::at(&known.url, key)?;
        let engines: Result<Vec<Endpoint>> = known.engines.iter().map(|url| Endpoint::at(url, key)).collect();
        let engines = engines?;
        let (model, max_model_len) = served(&endpoint, options.model.as_deref()).await?;
        let server = server(&endpoint, &engines).await;
        let mut targets = vec![Target { name: "endpoint".to_owned(), endpoint: endpoint.clone() }];
        let mut conditions = Vec::new();
        for engine in &engines {
            let condition = engine_conditions(engine).await?;
            targets.push(Target { name: condition.name.clone(), endpoint: engine.clone() });
            conditions.push(condition);
        }
        if engines.is_empty()
            && let Ok(condition) = engine_conditions(&endpoint).await
            && condition != unknown_engine(&endpoint)
        {
            targets[0].name.clone_from(&condition.name);
            conditions.push(condition);
        }
        let vocabulary = match options.token_ids {
            Some((first, last)) => Vocabulary::new((first.0..=last.0).map(TokenId).collect())
                .context("prompts need two different token ids at least")?,
            None => vocabulary(&endpoint, &engines, &model).await,
        };
        let system = System {
            name: known.name,
            strategy: known.strategy,
            endpoint: endpoint.base().to_owned(),
            api: options.api.path().to_owned(),
            model,
            server,
            commit: known.commit,
            max_model_len,
            flags: known.flags,
            same_host: endpoint.is_local(),
            engines: conditions,
        };
        Ok(Self { endpoint, system, vocabulary, targets })
    }

    /// Whether some engine keeps prefixes, if that is known of all that do not.
    pub fn prefix_cache(&self) -> Option<bool> {
        let states = || self.system.engines.iter().map(|engine| engine.prefix_cache);
        if states().any(|state| state == CacheState::On) {
            return Some(true);
        }
        (states().len() > 0 && states().all(|state| state == CacheState::Off)).then_some(false)
    }
}

async fn served(endpoint: &Endpoint, wanted: Option<&str>) -> Result<(String, Option<u32>)> {
    #[derive(Deserialize)]
    struct Models {
        data: Vec<Model>,
    }
    #[derive(Deserialize)]
    struct Model {
        id: String,
        #[serde(default)]
        max_model_len: Option<u32>,
    }
    let models: Result<Models> = endpoint.get_json("/v1/models").await;
    let models = match (models, wanted) {
        (Ok(models), _) => models.data,
        // Some endpoints have no such list.
        (Err(_), Some(_)) => Vec::new(),
        (Err(error), None) => return Err(error),
    };
    let chosen = match wanted {
        Some(wanted) => models.into_iter().find(|model| model.id == wanted),
        None => Some(models.into_iter().next().context("the endpoint serves no model")?),
    };
    Ok(match chosen {
        Some(model) => (model.id, model.max_model_len),
        None => (wanted.unwrap_or_default().to_owned(), None),
    })
}

/// Name and version, as the pages tell them.
async fn server(endpoint: &Endpoint, engines: &[Endpoint]) -> Option<String> {
    for at in std::iter::once(endpoint).chain(engines) {
        let page = at.get_text("/metrics").await.unwrap_or_default();
        let known = [("baton_", "baton"), ("vllm:", "vllm"), ("sglang:", "sglang")];
        let name = known.iter().find(|(prefix, _)| page.lines().any(|line| line.starts_with(prefix)));
        let version: Option<Value> = at.get_json("/version").await.ok();
        let version = version.as_ref().and_then(|version| version.get("version")?.as_str());
        match (name, version) {
            (Some((_, name)), Some(version)) => return Some(format!("{name} {version}")),
            // A router says no version; its engines do.
            (Some((_, name)), None) if engines.is_empty() => return Some((*name).to_owned()),
            _ => {}
        }
    }
    None
}

/// What is known of an engine that says nothing.
fn unknown_engine(engine: &Endpoint) -> EngineConditions {
    let url = engine.base().to_owned();
    EngineConditions {
        name: url.trim_start_matches("http://").to_owned(),
        url,
        ..EngineConditions::default()
    }
}

/// # Errors
/// If it has no metrics.
async fn engine_conditions(engine: &Endpoint) -> Result<EngineConditions> {
    let url = engine.base().to_owned();
    if let Ok(info) = engine.get_json::<EngineInfo>("/baton/info").await {
        return Ok(EngineConditions {
            name: info.engine_id.to_string().split('@').next().unwrap_or_default().to_owned(),
            role: Some(info.role.to_string()),
            url,
            prefix_cache: match info.prefix_cache {
                Some(true) => CacheState::On,
                Some(false) => CacheState::Off,
                None => CacheState::Unknown,
            },
            block_tokens: Some(info.block_tokens),
            kv_blocks: Some(u64::from(info.load.kv_blocks_total)),
            kv_dtype: info.kv_dtype.map(|dtype| format!("{dtype:?}").to_lowercase()),
            transports: info.transports,
        });
    }
    let page = engine.get_text("/metrics").await?;
    let Some(config) = page.lines().find(|line| line.starts_with("vllm:cache_config_info")) else {
        return Ok(unknown_engine(engine));
    };
    Ok(EngineConditions {
        prefix_cache: prefix_cache(&page),
        block_tokens: label(config, "block_size").and_then(|size| size.parse().ok()),
        kv_blocks: label(config, "num_gpu_blocks").and_then(|blocks| blocks.parse().ok()),
        kv_dtype: label(config, "cache_dtype").map(str::to_owned),
        ..unknown_engine(engine)
    })
}

/// As vLLM's page says it.
fn prefix_cache(page: &str) -> CacheState {
    let config = page.lines().find(|line| line.starts_with("vllm:cache_config_info"));
    match config.and_then(|config| label(config, "enable_prefix_caching")) {
        Some("True") => CacheState::On,
        Some("False") => CacheState::Off,
        _ => CacheState::Unknown,
    }
}

fn label<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let start = line.find(&format!("{name}=\""))? + name.len() + 2;
    line[start..].split('"').next()
}

/// The ids of common words, from whoever tells them.
async fn vocabulary(endpoint: &Endpoint, engines: &[Endpoint], model: &str) -> Vocabulary {
    #[derive(Deserialize)]
    struct Tokens {
        tokens: Vec<TokenId>,
    }
    let question = json!({"model": model, "prompt": words::sample(), "add_special_tokens": false});
    for at in std::iter::once(endpoint).chain(engines) {
        if let Ok(Tokens { tokens }) = at.post_json("/tokenize", &question).await
            && let Some(vocabulary) = Vocabulary::new(tokens)
        {
            return vocabulary;
        }
    }
    Vocabulary::bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_tells_of_its_cache() {
        let vllm = |on: &str| {
            format!("vllm:cache_config_info{{block_size=\"16\",enable_prefix_caching=\"{on}\"}} 1.0\n")
        };
        assert_eq!(prefix_cache(&vllm("True")), CacheState::On);
        assert_eq!(prefix_cache(&vllm("False")), CacheState::Off);
        assert_eq!(prefix_cache("other 1\n"), CacheState::Unknown);
        assert_eq!(label(&vllm("True"), "block_size"), Some("16"));
    }
}
