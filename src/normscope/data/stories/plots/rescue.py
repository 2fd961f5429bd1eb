"""A rescue: an animal in trouble is freed and leaves a magic word, which brings it back when its helper is lost."""

RULES = {
    "rescue": [
        "<walk>[ <air>|][| <sight>] <cry for help>\n<pleads> <frees> <promise>\n<lost way> <repaid> <evening>",
    ],
    "walk": [
        "<when>, {hero.he} <walked> to the {place=place}.",
        "<when>, {hero.he} was {place=place as at} with {hero.his} {elder=family}.",
        "<when>, {hero.his} {elder=family} sent {hero.him} to the {place=place} to <fetch>.",
    ],
    "fetch": ["fetch water", "pick berries", "find mushrooms", "buy eggs", "look for wood", "gather herbs"],
    "cry for help": [
        "<suddenly> {hero.he} heard <a cry>. It was <met>, {trouble=trouble}.",
        "Behind a [bush|wall|tree|rock|fence] {hero.he} found <met>, {trouble=trouble}.",
        "Somebody was {trouble=trouble}. It was <met>.",
    ],
    "a cry": ["a cry", "a small voice", "somebody call", "a sad song", "a squeak", "somebody sob", "a sigh"],
    "pleads": [
        '"[Help me|Please help me|Help|Get me out|Be quick]!" it <cried out><sadly>.',
        '"I have been {trouble} since [morning|yesterday|Monday|noon|last night|Friday]!" it <cried out>.',
        '"Do not [move|worry|cry|be afraid|give up]," <said> {hero}. "I [will|can|am here to|know how to] help you."',
    ],
    "cried out": ["cried", "sobbed", "called", "whispered", "begged", "wailed"],
    "frees": [
        "<So hero> <took care> and {trouble.freed}.",
        "It [was not easy|took some time|was hard work|was a little scary], "
        "but {hero} {trouble.freed} [with a stick|with both hands|in the end|after <number of> tries].",
        "<So hero> {trouble.freed}<quickly>, and <friend> was free.",
    ],
    "took care": [
        *("knelt down", "took a deep breath", "looked around", "put down {hero.his} bag"),
        *("counted to <number of>", "took off {hero.his} {tint} {clothes}"),
    ],
    "promise": [
        '"<if ever>, say {one=syllable as cap}-{two=syllable not one}-{three=syllable not two}," it <said><friendly>.',
        '"<thanks>! <if ever>, call {one=syllable as cap}-{two=syllable not one}-{three=syllable not two}," <said> '
        "<friend><friendly>.",
    ],
    "if ever": [
        *("If you need me", "When you are in trouble", "If you are lost"),
        *("When you are alone", "Whenever you want me"),
    ],
    "lost way": [
        "On the way [back|home] [the fog came|it grew dark|night fell|it began to rain], "
        "and {hero} <could not find home>.",
        "[That evening|The next day|A week later|In winter|One night] {hero} <could not find home>.",
    ],
    "could not find home": [
        *("lost {hero.his} way", "did not know the way home", "took the wrong path"),
        *("saw no path any more", "was all alone"),
    ],
    "repaid": [
        '"{one.cap}-{two}-{three}!" {hero.he} <sobbed><sadly>. <suddenly> <friend> was there. "<follow me>!" '
        "it <cried>.",
        '"{one.cap}-{two}-{three}!" '
        "{hero.he} <called out>, and <friend> came with a [lantern|candle|torch|light] in its [paws|mouth].",
        'What was the [word|magic word|secret word]? "{one.cap}-{two}-{three}!" {hero.he} <called out>. "<follow me>!" '
        "<replied> <friend>.",
    ],
    "called out": ["cried", "called", "shouted", "said", "whispered"],
    "follow me": ["Follow me", "Come with me", "Now I help you", "This way", "I know the way", "Here I am"],
    "evening": [
        "Before [long|midnight|supper] {hero} was home[, safe and warm| again|], and <friend> got <a treat>.",
        "So {hero} came home, {hobby.doing}, "
        "and <friend> [stayed for supper|stayed the night|went back to its {friend.home}].",
        "They [went|walked|came] home [side by side|together|hand in paw], "
        "{hobby.doing} [in the dark|in the moonlight|without fear|in the wind].",
    ],
    "a treat": [
        "a hug",
        "a bed by the fire",
        "all the {food=friend.foods} in the house",
        "a kiss on the nose",
        "hot soup",
    ],
}
