"""Programs of random lives: the same for the same seed, and of every kind."""

from tests.support.source_life.programs import KINDS, make_program


def test_a_seed_gives_the_same_program() -> None:
    assert make_program(7, 18) == make_program(7, 18)
    assert str(make_program(7, 18)) == str(make_program(7, 18)) != str(make_program(8, 18))


def test_programs_have_steps_of_every_kind() -> None:
    programs = [make_program(seed, 18) for seed in range(60)]
    steps = [step for program in programs for steps in program.rounds for step in steps]
    drawn = {name for step in steps for name in step.kind.removeprefix("rolled back: ").split(", ")}
    assert {kind.draw.__name__ for kind in KINDS} <= drawn
    assert {step.place for step in steps} == {"source", "silver", "jobs"}
