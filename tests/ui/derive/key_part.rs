use idem::KeyPart;

#[derive(KeyPart)]
struct Nothing;

#[derive(KeyPart)]
struct Weight(f64);

#[derive(KeyPart)]
union Either {
    one: u32,
    two: i32,
}

fn main() {}
