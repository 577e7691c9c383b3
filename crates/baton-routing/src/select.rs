//! The one function that chooses the engine of a leg, and the one that chooses the plan of an attempt.

use std::collections::{BTreeMap, BTreeSet};

use baton_types::{LegKind, Time};

use crate::config::{Limits, RoutingConfig};
use crate::engine_table::{Engine, EngineKey, EngineTable};
use crate::event::Failure;
use crate::health::Standing;
use crate::plan::Plan;
use crate::policy::{Candidate, Policy, PolicyKind, Preference};

/// The leg that needs an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want<'a> {
    pub kind: LegKind,
    pub model: &'a str,
    /// The engine of the other leg, which this one must be able to exchange KV with.
    pub peer: Option<EngineKey>,
    /// A kind of leg that will follow: the engine must have a partner for it.
    pub partner: Option<LegKind>,
    /// The engine that has the conversation already; taken while its load allows.
    pub prefer: Option<EngineKey>,
    /// Engines that have failed this request; taken only if the class has nothing else.
    pub tried: &'a BTreeSet<EngineKey>,
    /// Whether a full engine may be taken. Only for a leg whose handle is there: it must not wait, for the blocks
    /// that the handle names are pinned meanwhile.
    pub over_full: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    Engine(EngineKey),
    /// The engines to use have no free slot.
    Full,
    /// There is no such engine.
    Nobody,
}

/// Policies with their turns, one per kind of leg.
#[derive(Clone, Debug)]
pub(crate) struct Selector {
    policy: PolicyKind,
    turns: BTreeMap<LegKind, Policy>,
}

impl Selector {
    pub fn new(policy: PolicyKind) -> Self {
        Self { policy, turns: BTreeMap::new() }
    }

    /// Filters, then lets the policy pick: engines that serve the leg; of them the best class (a good engine that is full
    /// is waited for, not passed over for a bad one); in a bad class those with the shortest record; with a free
    /// slot; not tried, and with a partner of which the same is so.
    ///
    /// A preferred engine wins only among those that are left, so it must be as fit as they are and have a free slot.
    pub fn select(&mut self, now: Time, engines: &EngineTable, limits: &Limits, want: Want<'_>) -> Selection {
        let serving: Vec<(EngineKey, &Engine)> =
            engines.iter().filter(|(_, engine)| serves(engines, engine, &want)).collect();
        let Some(best) = serving.iter().map(|(_, e)| e.standing(now)).min() else { return Selection::Nobody };
        let mut class: Vec<_> = serving.into_iter().filter(|(_, e)| e.standing(now) == best).collect();
        if best != Standing::Fit {
            let least = class.iter().map(|(_, e)| e.health.failures()).min();
            class.retain(|(_, e)| Some(e.health.failures()) == least);
        }
        if class.iter().any(|(_, e)| e.has_slot(limits)) {
            class.retain(|(_, e)| e.has_slot(limits));
        } else if !want.over_full {
            return Selection::Full;
        }
        if class.iter().any(|(key, _)| !want.tried.contains(key)) {
            class.retain(|(key, _)| !want.tried.contains(key));
        }
        let is_fresh = |key: EngineKey, engine: &Engine| is_fresh(now, engines, limits, &want, key, engine);
        if class.iter().any(|(key, e)| is_fresh(*key, e)) {
            class.retain(|(key, e)| is_fresh(*key, e));
        }
        let candidates: Vec<Candidate> = class.iter().map(|(key, e)| candidate(*key, e)).collect();
        let turns = self.turns.entry(want.kind).or_insert_with(|| Policy::new(self.policy));
        let preference = want.prefer.map(|engine| Preference { engine, slack: limits.conversations.slack });
        turns.pick(&candidates, preference).map_or(Selection::Nobody, Selection::Engine)
    }
}

fn serves(engines: &EngineTable, engine: &Engine, want: &Want<'_>) -> bool {
    engine.serves(want.kind, want.model)
        && want.peer.is_none_or(|peer| engine.pairs_with(engines.get(peer)))
        && want.partner.is_none_or(|kind| {
            engines.iter().any(|(_, other)| other.serves(kind, want.model) && engine.pairs_with(other))
        })
}

fn candidate(key: EngineKey, engine: &Engine) -> Candidate {
    let waiting = engine.info.as_ref().map_or(0, |info| info.load.waiting);
    Candidate { engine: key, live_legs: engine.live_legs, waiting }
}

/// The plan of the next attempt: the deployment's strategy where its engines can be used, else `none` on engines of role
/// `both`, else whichever of the two has any engine at all.
pub(crate) fn choose_plan(
    now: Time,
    engines: &EngineTable,
    config: &RoutingConfig,
    model: &str,
    sequences: u32,
) -> Result<&'static Plan, Failure> {
    if engines.knows_anything() && !engines.knows_model(model) {
        return Err(Failure::UnknownModel);
    }
    let usable = usable_plan(now, engines, config, model, sequences);
    let missing = |plan: &Plan| missing_kind(now, engines, plan, model, Standing::Unhealthy);
    let last_resort = || plans(config, sequences).find(|plan| missing(plan).is_none());
    usable.or_else(last_resort).ok_or_else(|| match missing(config.strategy.plan()) {
        Some(kind) => Failure::NoEngine { kind },
        // Its engines are there; what is wrong is the request.
        None => Failure::OneSequenceOnly,
    })
}

/// The plan for which each kind of leg has an engine that takes requests, as far as its probes say.
pub(crate) fn usable_plan(
    now: Time,
    engines: &EngineTable,
    config: &RoutingConfig,
    model: &str,
    sequences: u32,
) -> Option<&'static Plan> {
    let usable = |plan: &&Plan| missing_kind(now, engines, plan, model, Standing::Avoided).is_none();
    plans(config, sequences).find(usable)
}

/// The plans to consider, best first. A handle is of one sequence, so several cannot be handed over.
fn plans(config: &RoutingConfig, sequences: u32) -> impl Iterator<Item = &'static Plan> {
    let plans = [config.strategy.plan(), &Plan::WHOLE].into_iter();
    plans.filter(move |plan| sequences == 1 || plan.mode.is_none())
}

/// The first kind of leg that has no engine of at least this standing.
fn missing_kind(
    now: Time,
    engines: &EngineTable,
    plan: &Plan,
    model: &str,
    worst: Standing,
) -> Option<LegKind> {
    let has = |kind| engines.iter().any(|(_, e)| e.serves(kind, model) && e.standing(now) <= worst);
    plan.kinds().find(|kind| !has(*kind))
}

/// Whether the next attempt would go to engines that have not failed this request: those are taken if there are any.
pub(crate) fn has_fresh(
    now: Time,
    engines: &EngineTable,
    limits: &Limits,
    plan: &Plan,
    model: &str,
    tried: &BTreeSet<EngineKey>,
) -> bool {
    let mut kinds = plan.kinds();
    let Some(kind) = kinds.next() else { return false };
    let want = Want { kind, model, peer: None, partner: kinds.next(), prefer: None, tried, over_full: false };
    engines.iter().any(|(key, engine)| {
        serves(engines, engine, &want) && is_fresh(now, engines, limits, &want, key, engine)
    })
}

/// Whether an engine that serves the leg is fit, has a slot and has not failed this request, and has a partner of which
/// the same is so.
fn is_fresh(
    now: Time,
    engines: &EngineTable,
    limits: &Limits,
    want: &Want<'_>,
    key: EngineKey,
    engine: &Engine,
) -> bool {
    let is_new = |key: EngineKey, engine: &Engine| {
        engine.standing(now) == Standing::Fit && engine.has_slot(limits) && !want.tried.contains(&key)
    };
    is_new(key, engine)
        && want.partner.is_none_or(|kind| {
            let partners = engines.iter().filter(|(_, other)| other.serves(kind, want.model));
            partners.filter(|(_, other)| engine.pairs_with(other)).any(|(key, other)| is_new(key, other))
        })
}

/// Free slots of all engines that would be selected for this kind of leg: those of the best class.
pub(crate) fn free_slots(
    now: Time,
    engines: &EngineTable,
    limits: &Limits,
    kind: LegKind,
    model: &str,
) -> usize {
    let serving = || engines.iter().map(|(_, e)| e).filter(|e| e.serves(kind, model));
    let best = serving().map(|e| e.standing(now)).min();
    serving()
        .filter(|e| Some(e.standing(now)) == best)
        .map(|e| limits.max_legs_per_engine.saturating_sub(e.live_legs))
        .sum()
}

#[cfg(test)]
mod tests {
    use baton_types::{EngineRole, Mutation};

    use super::*;
    use crate::engine_table::tests::info;
    use crate::plan::Strategy;

    struct Bench {
        table: EngineTable,
        config: RoutingConfig,
        selector: Selector,
        tried: BTreeSet<EngineKey>,
        prefer: Option<EngineKey>,
    }

    impl Bench {
        fn new(roles: &[EngineRole]) -> Self {
            let config = RoutingConfig {
                engines: roles.to_vec(),
                strategy: Strategy::Push,
                policy: PolicyKind::RoundRobin,
                limits: Limits { max_legs_per_engine: 2, ..Limits::default() },
                mutation: Mutation::NONE,
            };
            let mut table = EngineTable::new(&config);
            for (i, role) in (0..).zip(roles) {
                table.probed(Time(1), EngineKey(i), info(&format!("e{i}"), 1, *role));
            }
            let selector = Selector::new(config.policy);
            Self { table, config, selector, tried: BTreeSet::new(), prefer: None }
        }

        fn select(&mut self, over_full: bool) -> Selection {
            let want = Want {
                kind: LegKind::Decode,
                model: "tiny",
                peer: None,
                partner: None,
                prefer: self.prefer,
                tried: &self.tried,
                over_full,
            };
            self.selector.select(Time(1), &self.table, &self.config.limits, want)
        }

        fn fail(&mut self, key: u32, times: u32) {
            for _ in 0..times {
                self.table.get_mut(EngineKey(key)).health.leg_failed(Time(1), &self.config.limits);
            }
        }
    }

    fn engine(key: u32) -> Selection {
        Selection::Engine(EngineKey(key))
    }

    #[test]
    fn tried_engines_come_last_but_come() {
        let mut bench = Bench::new(&[EngineRole::Decode, EngineRole::Decode]);
        bench.tried.insert(EngineKey(0));
        assert_eq!([bench.select(false), bench.select(false)], [engine(1), engine(1)]);
        bench.tried.insert(EngineKey(1));
        assert_eq!(bench.select(false), engine(0));
    }

    #[test]
    fn the_engine_that_has_the_conversation_is_taken_while_it_is_as_good_as_the_others() {
        let mut bench = Bench::new(&[EngineRole::Decode, EngineRole::Decode]);
        bench.prefer = Some(EngineKey(1));
        assert_eq!([bench.select(false), bench.select(false)], [engine(1), engine(1)], "no turns");
        bench.config.limits.conversations.slack = 0;
        bench.table.get_mut(EngineKey(1)).live_legs = 1;
        assert_eq!([bench.select(false), bench.select(false)], [engine(0), engine(1)], "the policy's choice");
        bench.config.limits.conversations.slack = 9;
        bench.table.get_mut(EngineKey(1)).live_legs = 2;
        assert_eq!(bench.select(false), engine(0), "it is full");
        bench.table.get_mut(EngineKey(1)).live_legs = 0;
        bench.fail(1, 2);
        assert_eq!(bench.select(false), engine(0), "its legs fail");
        bench.table.get_mut(EngineKey(0)).live_legs = 2;
        assert_eq!(bench.select(false), Selection::Full, "and a good one is waited for");
    }

    #[test]
    fn a_full_good_engine_is_waited_for_unless_the_leg_cannot_wait() {
        let mut bench = Bench::new(&[EngineRole::Decode, EngineRole::Decode]);
        bench.fail(1, 2);
        bench.table.get_mut(EngineKey(0)).live_legs = 2;
        assert_eq!(bench.select(false), Selection::Full);
        assert_eq!(bench.select(true), engine(0));
    }

    #[test]
    fn if_all_are_bad_the_least_bad_is_taken() {
        let mut bench = Bench::new(&[EngineRole::Decode, EngineRole::Decode]);
        bench.fail(0, 3);
        bench.fail(1, 2);
        assert_eq!([bench.select(false), bench.select(false)], [engine(1), engine(1)]);
        for key in [0, 1] {
            for _ in 0..3 {
                bench.table.get_mut(EngineKey(key)).health.not_reached(&bench.config.limits);
            }
        }
        assert_eq!(bench.select(false), engine(1));
    }

    #[test]
    fn a_leg_goes_only_where_its_peer_can_be_reached() {
        let mut bench = Bench::new(&[EngineRole::Prefill, EngineRole::Decode, EngineRole::Decode]);
        let mut other = info("e1", 1, EngineRole::Decode);
        other.transports = vec!["nixl".into()];
        bench.table.probed(Time(1), EngineKey(1), other);
        let tried = BTreeSet::new();
        let base = Want {
            kind: LegKind::Decode,
            model: "tiny",
            peer: Some(EngineKey(0)),
            partner: None,
            prefer: None,
            tried: &tried,
            over_full: false,
        };
        let limits = bench.config.limits.clone();
        for _ in 0..2 {
            assert_eq!(bench.selector.select(Time(1), &bench.table, &limits, base), engine(2));
        }
        let prefill = Want { kind: LegKind::Prefill, peer: None, partner: Some(LegKind::Decode), ..base };
        assert_eq!(bench.selector.select(Time(1), &bench.table, &limits, prefill), engine(0));
        let mut other = info("e2", 1, EngineRole::Decode);
        other.unit_tokens = 8;
        bench.table.probed(Time(1), EngineKey(2), other);
        assert_eq!(bench.selector.select(Time(1), &bench.table, &limits, prefill), Selection::Nobody);
    }

    /// Else a request that another engine has no room for would ask it again and again without a pause.
    #[test]
    fn an_engine_without_a_peer_is_not_fresh() {
        let mut bench = Bench::new(&[EngineRole::Prefill, EngineRole::Decode, EngineRole::Decode]);
        let limits = bench.config.limits.clone();
        let fresh =
            |bench: &Bench, plan| has_fresh(Time(1), &bench.table, &limits, plan, "tiny", &bench.tried);
        bench.tried.insert(EngineKey(1));
        assert!(fresh(&bench, &Plan::PUSH), "the third");
        let mut other = info("e2", 1, EngineRole::Decode);
        other.transports = vec!["nixl".into()];
        bench.table.probed(Time(1), EngineKey(2), other);
        assert!(!fresh(&bench, &Plan::PUSH));
    }

    /// Two processes that are each asked for both: whoever prefills decides who decodes.
    #[test]
    fn an_engine_is_chosen_with_its_partner_in_mind() {
        use EngineRole::{Decode, Prefill};
        let mut bench = Bench::new(&[Prefill, Prefill, Decode, Decode]);
        for (key, name, role) in [(0, "a", Prefill), (1, "b", Prefill), (2, "b", Decode), (3, "a", Decode)] {
            bench.table.probed(Time(1), EngineKey(key), info(name, 1, role));
        }
        let (limits, tried) = (bench.config.limits.clone(), BTreeSet::from([EngineKey(3)]));
        let want = Want {
            kind: LegKind::Prefill,
            model: "tiny",
            peer: None,
            partner: Some(LegKind::Decode),
            prefer: None,
            tried: &tried,
            over_full: false,
        };
        let fresh = |bench: &Bench| has_fresh(Time(1), &bench.table, &limits, &Plan::PUSH, "tiny", &tried);
        for _ in 0..3 {
            assert_eq!(bench.selector.select(Time(1), &bench.table, &limits, want), engine(0));
        }
        assert!(fresh(&bench));
        bench.table.get_mut(EngineKey(2)).live_legs = 2;
        assert!(!fresh(&bench), "its partner has no slot: the other pair would be asked again");
    }

    #[test]
    fn the_plan_falls_back_to_engines_of_role_both() {
        let choose = |bench: &Bench| choose_plan(Time(1), &bench.table, &bench.config, "tiny", 1);
        let mut bench = Bench::new(&[EngineRole::Prefill, EngineRole::Decode, EngineRole::Both]);
        assert_eq!(choose(&bench), Ok(&Plan::PUSH));
        for _ in 0..3 {
            bench.table.get_mut(EngineKey(1)).health.not_reached(&Limits::default());
        }
        assert_eq!(choose(&bench), Ok(&Plan::WHOLE));
        for _ in 0..3 {
            bench.table.get_mut(EngineKey(2)).health.not_reached(&Limits::default());
        }
        assert_eq!(choose(&bench), Ok(&Plan::PUSH), "the least bad");
        assert_eq!(choose(&Bench::new(&[EngineRole::Both])), Ok(&Plan::WHOLE));
        let missing = Failure::NoEngine { kind: LegKind::Decode };
        assert_eq!(choose(&Bench::new(&[EngineRole::Prefill])), Err(missing));
        let unknown = choose_plan(Time(1), &bench.table, &bench.config, "other", 1);
        assert_eq!(unknown, Err(Failure::UnknownModel));
    }

    #[test]
    fn several_sequences_are_never_handed_over() {
        let choose = |bench: &Bench| choose_plan(Time(1), &bench.table, &bench.config, "tiny", 2);
        let all = Bench::new(&[EngineRole::Prefill, EngineRole::Decode, EngineRole::Both]);
        assert_eq!(choose(&all), Ok(&Plan::WHOLE));
        let pair = Bench::new(&[EngineRole::Prefill, EngineRole::Decode]);
        assert_eq!(choose(&pair), Err(Failure::OneSequenceOnly));
    }
}
