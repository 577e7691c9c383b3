//! Against the reference implementation's logits and greedy tokens.

mod support;

use std::path::Path;
use std::sync::Arc;

use baton_model::kernels::simd::Isa;
use baton_model::{CpuModel, CpuPrecision};
use baton_types::{KvDtype, KvLayout};
use serde::Deserialize;
use support::{TINY, argmax, data, entry, load, logits, runner, runner_of, smollm2_path, whole_table};

#[derive(Deserialize)]
struct TinyGolden {
    prompt_ids: Vec<u32>,
    logits_pos_9: Vec<f32>,
    logits_last: Vec<f32>,
    greedy_ids: Vec<u32>,
    top1_minus_top2: Vec<f32>,
}

#[derive(Deserialize)]
struct SmolGolden {
    chats: Vec<Chat>,
}

#[derive(Deserialize)]
struct Chat {
    prompt_ids: Vec<u32>,
    first_top8: Vec<(u32, f32)>,
    greedy_ids: Vec<u32>,
    top1_minus_top2: Vec<f32>,
}

fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> T {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Generates along the reference's own tokens, so that one near tie does not hide what follows; counts the steps at which the
/// runner would have said something else, of those with at least `margin` between the reference's best two.
fn disagreements(
    model: &Arc<CpuModel>,
    prompt: &[u32],
    greedy: &[u32],
    margins: &[f32],
    margin: f32,
) -> (Vec<f32>, usize) {
    let mut runner = runner(model, 16, (prompt.len() + greedy.len()).div_ceil(16), 2, Isa::best());
    let table = whole_table(&runner);
    let first = logits(&mut runner, vec![entry(1, prompt, 0, &table)]).remove(0);
    let mut wrong = 0;
    let mut current = first.clone();
    for (i, (&token, &between)) in greedy.iter().zip(margins).enumerate() {
        wrong += usize::from(argmax(&current) != token && between > margin);
        if i + 1 < greedy.len() {
            current = logits(&mut runner, vec![entry(1, &[token], prompt.len() + i, &table)]).remove(0);
        }
    }
    (first, wrong)
}

#[test]
fn tiny_models_give_the_reference_s_logits_and_tokens() {
    for name in TINY {
        let golden: TinyGolden = read(&data(name).join("golden.json"));
        let model = load(name, CpuPrecision::Exact);
        let mut runner = runner(&model, 16, 7, 2, Isa::best());
        let table = whole_table(&runner);
        let at_9 = logits(&mut runner, vec![entry(1, &golden.prompt_ids[..10], 0, &table)]).remove(0);
        let difference = largest_difference(&at_9, &golden.logits_pos_9);
        assert!(difference < 1e-4, "{name}: logits at position 9 differ by {difference}");
        let last = logits(&mut runner, vec![entry(1, &golden.prompt_ids[10..], 10, &table)]).remove(0);
        let difference = largest_difference(&last, &golden.logits_last);
        assert!(difference < 1e-4, "{name}: last logits differ by {difference}");
        // The reference took id 0 of the prompt for padding when it generated: its tokens follow the prompt without it.
        let unpadded: Vec<u32> = golden.prompt_ids.iter().copied().filter(|&id| id != 0).collect();
        let (_, wrong) = disagreements(&model, &unpadded, &golden.greedy_ids, &golden.top1_minus_top2, 1e-4);
        assert_eq!(wrong, 0, "{name}: tokens that differ");
    }
}

/// Rounded KV costs a little accuracy, and no more than its type must: F16 has 11 digits, BF16 8.
#[test]
fn rounded_kv_stays_close_to_the_reference() {
    for name in TINY {
        let golden: TinyGolden = read(&data(name).join("golden.json"));
        let model = load(name, CpuPrecision::Exact);
        for (dtype, most) in [(KvDtype::F16, 2e-3), (KvDtype::Bf16, 2e-2)] {
            let layout = KvLayout { dtype, ..model.kv_layout(16) };
            let mut runner = runner_of(&model, layout, 7, 2, Isa::best());
            let table = whole_table(&runner);
            let last = logits(&mut runner, vec![entry(1, &golden.prompt_ids, 0, &table)]).remove(0);
            let difference = largest_difference(&last, &golden.logits_last);
            println!("{name} {dtype:?}: {difference}");
            assert!(difference < most, "{name}, {dtype:?}: logits differ by {difference}");
        }
    }
}

#[test]
fn smollm2_gives_the_reference_s_logits_and_tokens() {
    let golden: SmolGolden = read(&data("smollm2.json"));
    let model = Arc::new(CpuModel::load(&smollm2_path(), CpuPrecision::Exact).unwrap());
    for (i, chat) in golden.chats.iter().enumerate() {
        let (first, wrong) =
            disagreements(&model, &chat.prompt_ids, &chat.greedy_ids, &chat.top1_minus_top2, 0.02);
        for &(id, want) in &chat.first_top8 {
            let got = first[id as usize];
            assert!((got - want).abs() < 0.01, "chat {i}, token {id}: {got}, the reference has {want}");
        }
        assert_eq!(wrong, 0, "chat {i}: tokens that differ at clear margins");
    }
}

/// Integer products round the activations: close to the reference, but not always its words.
#[test]
fn rounded_activations_stay_close_to_the_reference() {
    let golden: SmolGolden = read(&data("smollm2.json"));
    let model = Arc::new(CpuModel::load(&smollm2_path(), CpuPrecision::Int8).unwrap());
    let (mut steps, mut wrong, mut farthest) = (0, 0, 0.0f32);
    for chat in &golden.chats {
        let (first, w) =
            disagreements(&model, &chat.prompt_ids, &chat.greedy_ids, &chat.top1_minus_top2, 0.5);
        steps += chat.greedy_ids.len();
        wrong += w;
        let differences = chat.first_top8.iter().map(|&(id, want)| (first[id as usize] - want).abs());
        farthest = differences.fold(farthest, f32::max);
    }
    println!(
        "{wrong} of {steps} tokens differ at margins above 0.5; first logits differ by up to {farthest}"
    );
    assert!(wrong * 50 <= steps, "{wrong} of {steps} tokens differ at margins above 0.5");
    assert!(farthest < 1.5, "first logits differ by {farthest}");
}
