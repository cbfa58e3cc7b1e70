//! Makes a pool in a file, writes and lists a directory, and shows that it is there after opening
//! the pool again.
//!
//! `cargo run -p copyhold --example hello_pool [PATH]`

use copyhold::{CreateOptions, Error, OpenOptions, Pool};

fn main() -> Result<(), Error> {
    let path = std::env::args_os().nth(1).unwrap_or_else(|| "hello-pool.img".into());
    let options = CreateOptions { name: "hello".into(), ..CreateOptions::sized(256 << 20) };
    Pool::create(&path, &options)?;

    let pool = Pool::open(&path, OpenOptions::default())?;
    let volume = pool.root();
    volume.create_dir("greetings")?;
    for (name, text) in [("en", "hello"), ("la", "salve"), ("fr", "bonjour")] {
        volume.write(format!("greetings/{name}"), text.as_bytes())?;
    }
    volume.rename("greetings/fr", "greetings/français")?;
    volume.sync()?;
    pool.close()?;

    let pool = Pool::open(&path, OpenOptions { read_only: true, ..Default::default() })?;
    let volume = pool.root();
    for item in volume.list("greetings")? {
        let name = item.name.display().to_string();
        let text = volume.read(format!("greetings/{name}"))?;
        println!("{name}: {}", String::from_utf8_lossy(&text));
    }
    pool.close()
}
