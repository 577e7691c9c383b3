//! One line of what an engine counted: KV memory, hits, transfers, expiries.

use baton_workload::result::Scrape;

/// None of a server that counts nothing of that kind.
pub(super) fn digest(scrape: &Scrape) -> Option<String> {
    let parts = [kv_memory(scrape), hits(scrape), transfers(scrape), computed(scrape)];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// The growth of a counter, whatever its labels.
fn grew(scrape: &Scrape, name: &str) -> f64 {
    let is_it = |series: &&String| series.split('{').next() == Some(name);
    // The sum of nothing is a negative zero.
    scrape.counters.iter().filter(|(series, _)| is_it(series)).fold(0.0, |sum, (_, growth)| sum + growth)
}

fn kv_memory(scrape: &Scrape) -> Option<String> {
    let (_, gauge) =
        scrape.gauges.iter().find(|(series, _)| series.starts_with("vllm:kv_cache_usage_perc"))?;
    Some(format!("KV memory {:.0} % in use, {:.0} % at most", gauge.mean * 100.0, gauge.max * 100.0))
}

fn hits(scrape: &Scrape) -> Option<String> {
    let pairs = [
        ("baton_prefix_hit_tokens_total", "baton_prefix_queried_tokens_total"),
        ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    ];
    let (hits, queries) = pairs
        .map(|(hits, queries)| (grew(scrape, hits), grew(scrape, queries)))
        .into_iter()
        .find(|(_, queries)| *queries > 0.0)?;
    Some(format!("prefix hits {:.0} % of {queries:.0} tokens", hits / queries * 100.0))
}

fn transfers(scrape: &Scrape) -> Option<String> {
    let counted = [
        ("baton_transfers_sent_total", "sent"),
        ("baton_transfers_unsent_total", "not sent"),
        ("baton_transfers_received_total", "received"),
        ("baton_transfers_lost_total", "lost"),
        ("baton_recomputed_total", "computed again"),
        ("vllm:nixl_num_failed_transfers_total", "failed"),
        ("vllm:nixl_num_kv_expired_reqs_total", "expired"),
    ];
    let parts: Vec<String> = counted
        .into_iter()
        .map(|(name, word)| (grew(scrape, name), word))
        .filter(|(count, _)| *count > 0.0)
        .map(|(count, word)| format!("{count:.0} {word}"))
        .collect();
    (!parts.is_empty()).then(|| format!("transfers {}", parts.join(", ")))
}

fn computed(scrape: &Scrape) -> Option<String> {
    let (computed, preempted) =
        (grew(scrape, "baton_computed_tokens_total"), grew(scrape, "baton_preemptions_total"));
    let preempted =
        if preempted > 0.0 { format!(", {preempted:.0} sequences preempted") } else { String::new() };
    (computed > 0.0).then(|| format!("computed {computed:.0} tokens{preempted}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use baton_workload::result::Gauge;

    use super::*;

    #[test]
    fn engines_are_told_in_a_line() {
        let counters = [
            ("baton_prefix_hit_tokens_total", 50.0),
            ("baton_prefix_queried_tokens_total", 200.0),
            ("baton_transfers_received_total", 9.0),
            ("baton_transfers_lost_total", 1.0),
            ("baton_computed_tokens_total", 150.0),
        ];
        let gauge = Gauge { mean: 0.25, max: 0.5, ..Gauge::default() };
        let scrape = Scrape {
            counters: counters.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            gauges: BTreeMap::from([("vllm:kv_cache_usage_perc{model_name=\"m\"}".to_owned(), gauge)]),
            ..Scrape::default()
        };
        assert_eq!(
            digest(&scrape).unwrap(),
            "KV memory 25 % in use, 50 % at most; prefix hits 25 % of 200 tokens; transfers 9 received, 1 lost; computed 150 tokens"
        );
        assert_eq!(digest(&Scrape::default()), None);
        let counters = [("baton_prefix_queried_tokens_total".to_owned(), 8.0)].into();
        let none_found = Scrape { counters, ..Scrape::default() };
        assert_eq!(digest(&none_found).as_deref(), Some("prefix hits 0 % of 8 tokens"));
    }
}
