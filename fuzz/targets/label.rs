//! A label: any block is a label or an error; with its digest set right, too.

#![no_main]

use copyhold_format::label::Label;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = Label::parse(data);
    let mut block = copyhold_fuzz::block(data);
    copyhold_fuzz::set_digest(&mut block);
    if let Ok(label) = Label::parse(&block) {
        assert_eq!(Label::parse(&label.encode()), Ok(label));
    }
});
