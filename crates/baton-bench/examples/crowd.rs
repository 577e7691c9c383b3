//! How many streams the client reads at once before it is the limit: a server in a process of its own sends a token every 100 ms
//! on each, and the client tells how late it was.
//!
//!     cargo run --release -p baton-bench --example crowd -- [STREAMS] [SECONDS]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use baton_bench::{Api, LoadPlan, Options, Source};
use baton_workload::result::{Ending, Summary};
use baton_workload::schedule::Limits;
use baton_workload::{Arrivals, Lengths, Synthetic};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

const ITL: Duration = Duration::from_millis(100);
/// Streams begin within so long.
const RAMP_S: f64 = 5.0;

fn main() -> Result<()> {
    let argument = |n: usize, default: u32| std::env::args().nth(n).map_or(Ok(default), |text| text.parse());
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    if std::env::args().nth(1).as_deref() == Some("serve") {
        return tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?
            .block_on(serve());
    }
    let (streams, seconds) = (argument(1, 5000)?, argument(2, 20)?);
    let mut server = Command::new(std::env::current_exe()?).arg("serve").stdout(Stdio::piped()).spawn()?;
    let mut url = String::new();
    BufReader::new(server.stdout.take().context("its output is a pipe")?).read_line(&mut url)?;
    let outcome = measure(url.trim(), streams, seconds);
    server.kill()?;
    server.wait()?;
    outcome
}

fn measure(url: &str, streams: u32, seconds: u32) -> Result<()> {
    let out = std::env::temp_dir().join(format!("baton-crowd-{}", std::process::id()));
    let tokens = seconds * 1000 / ITL.as_millis() as u32;
    let options = Options {
        engines: Vec::new(),
        model: Some("crowd".to_owned()),
        api: Api::Completions,
        source: Source::Synthetic(Synthetic {
            input: Lengths::Fixed(16),
            output: Lengths::Fixed(tokens),
            shared_prefix_tokens: 0,
            distinct: None,
            turns: 1,
            think: Duration::ZERO,
            in_words: false,
        }),
        load: LoadPlan::Rates { rates: vec![f64::from(streams) / RAMP_S], arrivals: Arrivals::Constant },
        time_scale: 1.0,
        limits: Limits { requests: Some(u64::from(streams)), duration: None },
        rounds: 1,
        ignore_eos: true,
        temperature: 0.0,
        warmup: 0,
        seed: 1,
        slo: None,
        request_timeout: Duration::from_secs(300),
        drain: Duration::ZERO,
        max_streams: 1 << 16,
        token_ids: None,
        api_key: None,
        out: out.clone(),
        label: None,
        command: Vec::new(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (_keep, stop) = watch::channel(false);
    let outcome = runtime.block_on(baton_bench::bench(url, options, stop))?;
    let point = &outcome.result.points[0];
    let p50_p99_max =
        |summary: Option<Summary>| summary.map(|s| (s.p50.value, s.p99.value, s.max)).unwrap_or_default();
    println!(
        "{} streams at once, {} of {} answers complete, {:.0} tokens/s",
        point.client.peak_concurrency,
        point.counts.of(Ending::Complete),
        point.counts.scheduled,
        point.throughput.output_tokens.value
    );
    println!(
        "p50, p99, max in ms: ITL {:.1?} (100 is right), request lag {:.2?}, event loop lag {:.2?}",
        p50_p99_max(point.itl_ms),
        p50_p99_max(point.client.lag_ms),
        p50_p99_max(point.client.loop_lag_ms)
    );
    println!("client CPU: {:.2} cores", point.client.cpu_cores.unwrap_or_default());
    std::fs::remove_dir_all(out)?;
    Ok(())
}

async fn serve() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    loop {
        let (socket, _) = listener.accept().await?;
        tokio::spawn(async move { drop(stream(socket).await) });
    }
}

/// One answer of as many tokens as the request's `max_tokens`; then the connection is closed.
async fn stream(mut socket: TcpStream) -> Result<()> {
    socket.set_nodelay(true)?;
    let mut request = Vec::new();
    // The body is small and ends with two braces.
    while !request.ends_with(b"}}") {
        if socket.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let text = String::from_utf8_lossy(&request);
    let tokens = text.split("\"max_tokens\":").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok());
    let tokens: u32 = tokens.context("a request has max_tokens")?;
    let begin = Instant::now();
    socket
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        .await?;
    for token in 1..=tokens {
        sleep_until(begin + ITL * token).await;
        socket.write_all(b"data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"crowd\",\"choices\":[{\"index\":0,\"text\":\" word\",\"logprobs\":null,\"finish_reason\":null}]}\n\n").await?;
    }
    let end = format!(
        "data: {{\"choices\":[{{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}}]}}\n\ndata: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":16,\"completion_tokens\":{tokens},\"total_tokens\":0}}}}\n\ndata: [DONE]\n\n"
    );
    socket.write_all(end.as_bytes()).await?;
    Ok(())
}
