//! Compiles the protos with a compiler written in Rust, so that a build needs no
//! protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let files = ["node.proto", "netd.proto", "relay.proto"];
    for file in files {
        println!("cargo::rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["."])?;
    tonic_prost_build::configure()
        .bytes(".")
        // These two carry Secrets and bearer tokens. Their Debug is written by
        // hand, so that no log line can contain a payload.
        .skip_debug([".horchestra.node.v1.DesiredState", ".horchestra.node.v1.WorkloadToken"])
        .emit_rerun_if_changed(false)
        .compile_fds(descriptors)?;
    Ok(())
}
