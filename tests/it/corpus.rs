//! The inputs that fuzzing has kept, through the same functions that the fuzz targets run, on any compiler.
//!
//! So what was found once stays mended, also where nobody fuzzes. The inputs of `head` are run by a unit test of the
//! server, which has no public door for it.

use std::path::Path;

#[allow(unreachable_pub, dead_code, reason = "it is the library of another package, taken in as a module")]
#[path = "../../fuzz/src/lib.rs"]
mod targets;

#[test]
fn the_kept_inputs_of_every_target_show_no_fault() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let mut folders: Vec<String> =
        std::fs::read_dir(&corpus).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    folders.retain(|name| name != "head");
    folders.sort();
    assert_eq!(folders, targets::TARGETS.map(|(name, _)| name), "each target has a folder of kept inputs");
    for (name, run) in targets::TARGETS {
        let files = std::fs::read_dir(corpus.join(name)).unwrap().map(|entry| entry.unwrap().path());
        let inputs: Vec<_> = files.map(|file| (file.clone(), std::fs::read(file).unwrap())).collect();
        assert!((10..200).contains(&inputs.len()), "{name} has {} inputs", inputs.len());
        let bytes: usize = inputs.iter().map(|(_, input)| input.len()).sum();
        assert!(bytes < 300_000, "{name} has {bytes} bytes");
        for (file, input) in inputs {
            // Shown if it panics.
            println!("{}", file.display());
            run(&input);
        }
    }
}
