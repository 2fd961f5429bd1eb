"""A gift: what is inside is what was made, and the ribbon that was tied is the one that is pulled."""

RULES = {
    "gift": [
        "<occasion> <idea>[ <how>[| <mishap>]|]\n<wraps>[| <guests>] <opens>\n<joy> <shared>",
    ],
    "occasion": [
        "<when>, it was the [birthday|name day|big day] of {hero.his} [friend|best friend|neighbour|cousin] "
        "{pal=person not hero}.",
        "<when>, {hero.his} [friend|best friend|neighbour|cousin] {pal=person not hero} <needs cheering>.",
        "<when>, {hero.he} heard that {pal=person not hero} <needs cheering>.",
    ],
    "needs cheering": [
        *(
            "was ill",
            "was sad",
            "had a cold",
            "had moved into a new house",
            "was [seven|six|eight|five|ten] years old today",
        ),
        *("was back from the sea", "felt lonely", "had a bad dream", "had learned to swim"),
    ],
    "idea": [
        '"What [could|can|shall] I give {pal.him}?" <asked> {hero}. "[I know|Of course|Aha]! '
        '{look=look as A} {thing=thing}!"',
        '"{pal} needs {look=look as a} {thing=thing}!" <cried> {hero}<gladly>.',
        "{hero} [wanted|decided|promised] to [give|bring] {pal.him} {look=look as a} {thing=thing}.",
        "{hero} thought [for a long time|all night|hard|all day] and [decided on|chose|dreamed of] {look=look as a} "
        "{thing=thing}.",
    ],
    "how": [
        "{hero.He} bought it <from whom> for {price=number} [coins|marbles|buttons|cherries|stamps].",
        "{hero.His} {elder=family} helped {hero.him} to make "
        "it[, and it took {days=number} days|, and they laughed a lot|].",
        "{hero.He} made it <in secret> and [hummed|smiled|whistled|sweated|sneezed] as {hero.he} worked.",
    ],
    "from whom": ["at the market", "from a sailor", "in the old shop", "at the fair", "from a witch", "from the smith"],
    "in secret": [
        *("all alone", "in the attic", "in secret", "by candlelight", "in the shed", "under the bed", "at night"),
    ],
    "mishap": [
        "On the way {hero.he} <stumbled>, but the {thing} was [safe|still dry|fine|as good as new].",
        "At first it [broke|looked funny|did not work|was too big|fell apart], "
        "but {hero.he} [tried again|did not give up|mended it].",
        "A [goat|dog|crow|cow] [wanted to eat it|nearly stole it|sat down on it], "
        "but {hero.he} [saved it|only laughed|pulled it back].",
    ],
    "stumbled": [
        *("fell into a puddle", "lost a shoe", "had to cross a river", "met a goat"),
        *("missed the bus", "got lost twice"),
    ],
    "wraps": [
        "{hero} put the {thing} in a <box> and tied {ribbon=colour as a} ribbon around it.",
        "{hero} wrapped the {look} {thing} in [soft|thin|brown|crisp] paper and took {ribbon=colour as a} ribbon.",
        "With {ribbon=colour as a} ribbon and [a leaf|some paper|a cloth|a flower|a bell], "
        "the {thing} became a [fine|real|lovely] gift.",
    ],
    "box": ["box", "bag", "sack", "basket", "chest", "bucket"],
    "guests": [
        "<guest>, <other guest> and <third guest> were [there already|waiting|having tea|all there].",
        "<guest> and <other guest> [waved|sang|were dancing|had come, too|had brought flowers].",
        "<guest> had brought <third guest>.",
    ],
    "guest": ["Mrs Hill", "Mr Brown", "Old Peter", "Mrs Moon", "Mr Fisher", "Aunt May", "Doctor Wells", "Little Pat"],
    "other guest": ["the baker", "the twins", "Mr Green", "the miller", "Mrs Wood", "Uncle Will", "the king", "Jane"],
    "third guest": [
        *("a parrot", "the teacher", "the cat", "Captain Jack", "three cousins", "the postman", "Grandpa Joe"),
    ],
    "opens": [
        "{pal} pulled the {ribbon} ribbon<slowly>.",
        '"[Is that for me?|What is it?|A gift!|Oh!|For me?]" <said> {pal} and pulled the {ribbon} ribbon<slowly>.',
        "{pal} [shook it|held it up|smelled it|guessed and guessed|laughed]. Then the {ribbon} ribbon came off.",
    ],
    "slowly": ["", " slowly", " at once", " with a laugh", " with trembling hands", " very carefully", " at last"],
    "joy": [
        '"{look.A} {thing}! <just right>!" {pal} <cried><gladly>.',
        "[Inside was|It was|Out came] the {look} {thing}. "
        "{pal} [jumped for joy|could not say a word|hugged {hero}|laughed and cried|danced].",
        '"{look.A} {thing}! Is it [really for me|a dream|really mine]?" <asked> {pal}. '
        "{hero} [nodded|blushed|only smiled|laughed|winked].",
    ],
    "just right": [
        *("Thank you", "Just what I wanted", "How lovely", "You are the best"),
        *("I will keep it forever", "I have no words"),
    ],
    "shared": [
        "They took turns to {thing.use} it [until dark|all day|until supper|and were happy|in the garden|for hours].",
        "And {pal} {thing.used} the {look} {thing} every [day|Sunday|evening|morning|spring|Friday].",
        "And from then on {pal} wore the {ribbon} ribbon <on what>.",
        "{hero} {hobby.did} all the way <back>.",
    ],
    "on what": ["around {pal.his} neck", "on {pal.his} hat", "as a belt", "around {pal.his} wrist", "on Sundays"],
}
