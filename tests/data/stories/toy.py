"""A grammar small enough to enumerate all its texts with their probabilities."""

from normscope.data.stories.grammar import Grammar
from normscope.data.stories.vocabulary import Word

PETS = {"cat": ["fish"], "owl": ["nuts", "mice"], "dog": ["bones", "bread", "fish"]}

RULES = {
    "start": ["{one=pet as A} met {two=pet not one}<how>.", "The {one=pet} ate {food=one.foods}[| and more {food}]."],
    "how": ["", " in the [rain|snow|sun]"],
}

TOY = Grammar(RULES, {"pet": [Word(pet, foods=foods) for pet, foods in PETS.items()]}, "start")


def probabilities(count: int) -> list[float]:
    """Probabilities by definition: the option of rank r has weight 1 / (r + 2)."""
    weights = [1 / (rank + 2) for rank in range(1, count + 1)]
    return [weight / sum(weights) for weight in weights]


def every_text() -> dict[str, float]:
    """Each text of the toy grammar and its probability, enumerated without the grammar graph."""
    found: dict[str, float] = {}
    meeting, eating = probabilities(2)
    plain, weather = probabilities(2)
    for one, p_one in zip(PETS, probabilities(3), strict=True):
        others = {two: p for two, p in zip(PETS, probabilities(3), strict=True) if two != one}
        for two, p_two in others.items():
            so_far = meeting * p_one * p_two / sum(others.values())
            text = f"{'An' if one == 'owl' else 'A'} {one} met {two}"
            found[f"{text}."] = so_far * plain
            for sky, p_sky in zip(("rain", "snow", "sun"), probabilities(3), strict=True):
                found[f"{text} in the {sky}."] = so_far * weather * p_sky
        for food, p_food in zip(PETS[one], probabilities(len(PETS[one])), strict=True):
            found[f"The {one} ate {food}."] = eating * p_one * p_food * plain
            found[f"The {one} ate {food} and more {food}."] = eating * p_one * p_food * weather
    return found
