//! A counter that survives anything: each step is durable before it is printed.
//!
//! `cargo run -p copyhold --example durable_counter PATH STEPS`. Kill it and run it again: it goes
//! on where it was, or one step further.

use copyhold::{CreateOptions, Error, OpenOptions, Pool};

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| "counter.img".into());
    let steps = args.next().and_then(|steps| steps.parse().ok()).unwrap_or(100u64);
    if !std::path::Path::new(&path).exists() {
        Pool::create(&path, &CreateOptions::sized(64 << 20))?;
    }
    let pool = Pool::open(&path, OpenOptions::default())?;
    let volume = pool.root();
    let found = volume.read("counter").unwrap_or_default();
    let mut count: u64 = String::from_utf8_lossy(&found).trim().parse().unwrap_or(0);
    println!("starting at {count}");
    for _ in 0..steps {
        count += 1;
        volume.write("counter.new", format!("{count}\n").as_bytes())?;
        volume.rename("counter.new", "counter")?;
        volume.sync_file("counter")?;
    }
    println!("now at {count}");
    pool.close()
}
