//! The engines: what is known of each, how fit it is, and how many legs it has.

use std::collections::BTreeMap;
use std::fmt;

use baton_types::{EngineInfo, EngineRole, LegKind, Time};

use crate::config::{Limits, RoutingConfig};
use crate::event::Peer;
use crate::health::{Health, Standing};

/// An engine of the configuration: its index in [`RoutingConfig::engines`]. Survives restarts of the engine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineKey(pub u32);

impl fmt::Debug for EngineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Engine {
    role: EngineRole,
    /// What the last good probe said.
    pub info: Option<EngineInfo>,
    pub last_seen: Time,
    pub health: Health,
    pub live_legs: usize,
}

impl Engine {
    /// Whether it takes legs of this kind for this model: by its configuration, and by its own word.
    pub fn serves(&self, kind: LegKind, model: &str) -> bool {
        let Some(info) = &self.info else { return false };
        offers(self.role, kind) && offers(info.role, kind) && info.model == model
    }

    /// Whether KV can go from one to the other, which is another engine. Block sizes may differ; models, units and, unless both convert, types may not.
    pub fn pairs_with(&self, other: &Self) -> bool {
        let (Some(a), Some(b)) = (&self.info, &other.info) else { return false };
        a.engine_id.name != b.engine_id.name
            && a.model == b.model
            && a.unit_tokens == b.unit_tokens
            && a.kv_dtype == b.kv_dtype
            && a.transports.iter().any(|transport| b.transports.contains(transport))
    }

    pub fn standing(&self, now: Time) -> Standing {
        self.health.standing(now, self.live_legs)
    }

    pub fn has_slot(&self, limits: &Limits) -> bool {
        self.live_legs < limits.max_legs_per_engine
    }
}

fn offers(role: EngineRole, kind: LegKind) -> bool {
    match role {
        EngineRole::Prefill => kind == LegKind::Prefill,
        EngineRole::Decode => kind == LegKind::Decode,
        EngineRole::Both => kind == LegKind::Whole,
    }
}

#[derive(Clone, Debug)]
pub(crate) struct EngineTable {
    engines: BTreeMap<EngineKey, Engine>,
}

impl EngineTable {
    pub fn new(config: &RoutingConfig) -> Self {
        let engine = |role: &EngineRole| Engine {
            role: *role,
            info: None,
            last_seen: Time::ZERO,
            health: Health::new(),
            live_legs: 0,
        };
        Self { engines: (0..).map(EngineKey).zip(config.engines.iter().map(engine)).collect() }
    }

    /// # Panics
    /// If the key is not of the configuration: keys never come from outside.
    pub fn get(&self, key: EngineKey) -> &Engine {
        self.engines.get(&key).expect("engine keys come from the configuration")
    }

    pub fn get_mut(&mut self, key: EngineKey) -> &mut Engine {
        self.engines.get_mut(&key).expect("engine keys come from the configuration")
    }

    pub fn iter(&self) -> impl Iterator<Item = (EngineKey, &Engine)> {
        self.engines.iter().map(|(key, engine)| (*key, engine))
    }

    /// Takes in a good probe. Returns, if another incarnation answers than before, when the old one was last seen.
    pub fn probed(&mut self, now: Time, key: EngineKey, info: EngineInfo) -> Option<Time> {
        let engine = self.get_mut(key);
        let restarted = engine.info.as_ref().is_some_and(|old| old.engine_id != info.engine_id);
        if restarted {
            engine.health = Health::new();
        }
        engine.health.probe_ready();
        engine.info = Some(info);
        let old_seen = std::mem::replace(&mut engine.last_seen, now);
        restarted.then_some(old_seen)
    }

    /// The engine as the other leg needs to know it; none before its first good probe.
    pub fn peer(&self, key: EngineKey) -> Option<Peer> {
        let info = self.get(key).info.as_ref()?;
        let (host, port) = (info.side_channel.host.clone(), info.side_channel.port);
        Some(Peer { engine: key, id: info.engine_id.clone(), host, port })
    }

    /// Whether any engine has said that it serves the model.
    pub fn knows_model(&self, model: &str) -> bool {
        self.engines.values().any(|e| e.info.as_ref().is_some_and(|info| info.model == model))
    }

    /// Whether any engine has said anything.
    pub fn knows_anything(&self) -> bool {
        self.engines.values().any(|e| e.info.is_some())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use baton_types::{EngineId, EngineLoad, EngineName, KvDtype, SideChannel};

    use super::*;

    pub fn info(name: &str, incarnation: u64, role: EngineRole) -> EngineInfo {
        EngineInfo {
            engine_id: EngineId::new(EngineName::new(name).unwrap(), incarnation),
            role,
            model: "tiny".into(),
            side_channel: SideChannel { host: "10.0.0.1".into(), port: 5600 },
            transports: vec!["shm".into()],
            max_model_len: 8192,
            block_tokens: 16,
            unit_tokens: 16,
            kv_dtype: Some(KvDtype::F32),
            prefix_cache: None,
            load: EngineLoad::default(),
        }
    }

    fn table() -> EngineTable {
        EngineTable::new(&RoutingConfig {
            engines: vec![EngineRole::Prefill, EngineRole::Decode],
            strategy: Default::default(),
            policy: Default::default(),
            limits: Limits::default(),
            mutation: Default::default(),
        })
    }

    #[test]
    fn a_role_needs_the_word_of_both_sides() {
        let mut table = table();
        assert!(!table.get(EngineKey(0)).serves(LegKind::Prefill, "tiny"), "not seen yet");
        table.probed(Time(1), EngineKey(0), info("p", 1, EngineRole::Prefill));
        assert!(table.get(EngineKey(0)).serves(LegKind::Prefill, "tiny"));
        assert!(!table.get(EngineKey(0)).serves(LegKind::Prefill, "other"));
        table.probed(Time(2), EngineKey(0), info("p", 1, EngineRole::Decode));
        assert!(!table.get(EngineKey(0)).serves(LegKind::Prefill, "tiny"));
        assert!(!table.get(EngineKey(0)).serves(LegKind::Decode, "tiny"));
    }

    #[test]
    fn unlike_engines_are_not_paired() {
        let mut table = table();
        table.probed(Time(1), EngineKey(0), info("p", 1, EngineRole::Prefill));
        let good = info("d", 2, EngineRole::Decode);
        let pairs = |table: &mut EngineTable, info: EngineInfo| {
            table.probed(Time(2), EngineKey(1), info);
            table.get(EngineKey(0)).pairs_with(table.get(EngineKey(1)))
        };
        assert!(pairs(&mut table, good.clone()));
        assert!(!pairs(&mut table, info("p", 1, EngineRole::Decode)), "one engine by two names");
        assert!(!pairs(&mut table, EngineInfo { model: "other".into(), ..good.clone() }));
        assert!(pairs(&mut table, EngineInfo { block_tokens: 32, ..good.clone() }));
        assert!(!pairs(&mut table, EngineInfo { unit_tokens: 8, ..good.clone() }));
        assert!(!pairs(&mut table, EngineInfo { kv_dtype: Some(KvDtype::F16), ..good.clone() }));
        assert!(!pairs(&mut table, EngineInfo { kv_dtype: None, ..good.clone() }), "both must convert");
        assert!(!pairs(&mut table, EngineInfo { transports: vec!["nixl".into()], ..good }));
    }

    #[test]
    fn a_new_incarnation_is_a_restart_and_has_a_clean_record() {
        let mut table = table();
        let key = EngineKey(0);
        assert_eq!(table.probed(Time(1), key, info("p", 1, EngineRole::Prefill)), None);
        assert_eq!(table.probed(Time(2), key, info("p", 1, EngineRole::Prefill)), None);
        for _ in 0..2 {
            table.get_mut(key).health.leg_failed(Time(2), &Limits::default());
        }
        assert_eq!(table.get(key).standing(Time(3)), Standing::Avoided);
        assert_eq!(table.probed(Time(3), key, info("p", 2, EngineRole::Prefill)), Some(Time(2)));
        assert_eq!(table.get(key).standing(Time(3)), Standing::Fit);
    }
}
